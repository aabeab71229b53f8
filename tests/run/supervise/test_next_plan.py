"""The plan that follows a loss: on the devices that are left, whatever the plan before."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, cluster_from, config_from, load_config
from jaxpipe.plan import (
    Pipeline,
    Plan,
    PlanConfig,
    Sharing,
    check_plan,
    default_plan,
    read_plan,
    write_plan,
)
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.supervise.next_plan import NextPlan, changed_fields, next_plan
from jaxpipe.run.supervise.remaining_groups import remaining_groups
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.remaining import Remaining, candidates
from jaxpipe.topo.toml_text import toml_text
from tests.plan.models import profile_of
from tests.run.supervise.test_supervisor import six_layers

FOLDER = Path("unused")


def after_loss(config: Config, *, lost: int = 1, running: Plan | None = None) -> NextPlan | None:
    """Return the plan without the last devices of the one before."""
    running = running or plan_from(config)
    devices = [device for group in running.groups for device in group]
    return next_plan(config, running, devices[: len(devices) - lost], moves=False)


@pytest.mark.parametrize(
    ("stages", "replicas", "batch", "expected"),
    [
        (2, 2, 8, (3, 1)),
        (3, 1, 8, (2, 1)),
        (1, 2, 8, (1, 1)),
        (3, 2, 8, (4, 1)),  # no rank may hold more than before: its memory is unknown
        (1, 1, 8, None),
    ],
)
def test_smaller_plans(
    stages: int, replicas: int, batch: int, expected: tuple[int, int] | None
) -> None:
    plan = {"stages": stages, "replicas": replicas}
    found = after_loss(config_from(six_layers(FOLDER, FOLDER, plan=plan, train={"batch": batch})))
    if found is None:
        assert expected is None
        return
    assert (found.plan.num_stages, found.plan.num_replicas) == expected
    assert found.plan.num_ranks < stages * replicas
    assert found.changes == ()


@pytest.mark.parametrize(("lost", "expected"), [(0, (2, 2)), (1, (3, 1)), (2, (2, 1)), (4, None)])
def test_the_largest_plan_for_so_many_ranks(lost: int, expected: tuple[int, int] | None) -> None:
    found = after_loss(config_from(six_layers(FOLDER, FOLDER)), lost=lost)
    assert expected == (None if found is None else (found.plan.num_stages, found.plan.num_replicas))


def test_a_smaller_plan_is_for_those_that_are_left() -> None:
    config = config_from(six_layers(FOLDER, FOLDER, plan={"cluster": "two-region"}))
    found = next_plan(config, plan_from(config), (1, 2, 3), moves=False)
    assert found is not None
    assert found.plan.placement == ((1, 2, 3),)


def test_replicas_that_are_whole_stay_and_others_share_unequally() -> None:
    plan = {"cluster": "homogeneous:hosts=6,delay_ms=0,bandwidth_gbps=1e6", "stages": 2}
    tree = six_layers(FOLDER, FOLDER, plan={**plan, "replicas": 3}, train={"batch": 9})
    config = config_from(tree)
    found = next_plan(config, plan_from(config), (0, 1, 3, 4, 5), moves=False)
    assert found is not None
    assert found.plan.batch == 9
    assert not found.plan.is_even
    assert sorted(device for row in found.plan.placement for device in row) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_plan_file_is_planned_again_as_a_section_would_be(tmp_path: Path, chunks: int) -> None:
    kind = "1f1b" if chunks == 1 else "interleaved-1f1b"
    plan = {"stages": 2 * chunks, "replicas": 2, "schedule": kind, "chunks": chunks}
    path, by_file = tmp_path / "config.toml", tmp_path / "by-file.toml"
    path.write_text(toml_text(six_layers(tmp_path, tmp_path, plan={**plan, "all_reduce": "ring"})))
    section = load_config(path)
    write_plan(plan_from(section), cluster_from(section), tmp_path / "plan.toml")
    file = {"file": str(tmp_path / "plan.toml"), "stages": 7}  # the file overrides
    by_file.write_text(toml_text(six_layers(tmp_path, tmp_path, plan=file)))
    plans = [after_loss(load_config(each, notice=None)) for each in (path, by_file)]
    assert plans[0] is not None
    assert plans[0] == plans[1]
    assert plans[0].plan.num_ranks < 4


CLUSTER = topo.load("homogeneous:hosts=4,devices=2,delay_ms=0,bandwidth_gbps=1e6")


def config_on(cluster: str = CLUSTER.name, *, num_layers: int = 6, batch: int = 8) -> Config:
    tree = six_layers(FOLDER, FOLDER, plan={"cluster": cluster}, train={"batch": batch})
    model = {**tree["model"], "num_layers": num_layers}
    return config_from({**tree, "model": model})


def with_trees(*pipelines: Pipeline, **fields: object) -> Plan:
    config = config_on()
    plan = Plan(
        pipelines=pipelines,
        schedule=ScheduleKind.ONE_F_ONE_B,
        tied=config.model.tied,
    )
    plan = replace(plan, **fields)
    plan = with_island_trees(plan, CLUSTER.devices)
    check_plan(plan, num_devices=len(CLUSTER))
    return plan


def everything() -> Plan:
    """Return interleaved stages, unequal replicas, and ranks of two devices of a host."""
    first = Pipeline(
        devices=(0, 2), peers=((1,), (3,)), cut=(2, 1, 1, 2), num_microbatches=4, microbatch=1
    )
    second = Pipeline(devices=(4, 6), peers=((5,), (7,)), cut=(1, 2, 2, 1), num_microbatches=2)
    second = replace(second, microbatch=2)
    return with_trees(
        first,
        second,
        schedule=ScheduleKind.INTERLEAVED,
        num_chunks=2,
        sharing=Sharing.TENSOR,
    )


def test_every_plan_loses_a_host_and_goes_on(tmp_path: Path) -> None:
    running = everything()
    lost = "here-3"
    devices = [n for n, device in enumerate(CLUSTER.devices) if device.host != lost]
    found = next_plan(config_on(), running, devices, cluster=CLUSTER, moves=False)
    assert found is not None
    plan = found.plan
    check_plan(plan, num_devices=len(CLUSTER))
    assert plan.batch == running.batch
    assert {device for group in plan.groups for device in group} <= set(devices)
    assert set(plan.groups) <= set(running.groups)  # groups stay as they are
    assert (plan.schedule, plan.num_chunks) == (ScheduleKind.INTERLEAVED, 2)
    file = tmp_path / "plan.toml"
    before = config_on().outer
    assert found.write(CLUSTER, file, before=before) == (f"plan.file={file}",)
    assert read_plan(file, CLUSTER) == plan


def test_a_schedule_of_its_own_is_given_up_where_it_does_not_fit() -> None:
    named = default_plan(
        PlanConfig(stages=2, replicas=2, microbatch=1, schedule=_KINDS[0]),
        CLUSTER,
        num_layers=6,
        batch=8,
        tied=everything().tied,
    )
    custom = replace(named, schedule=named.compute_schedule())
    found = next_plan(config_on(), custom, (0, 1, 2), cluster=CLUSTER, moves=False)
    assert found is not None
    assert found.plan.schedule is ScheduleKind.ONE_F_ONE_B
    assert found.changes == ("`schedule` custom -> 1f1b",)


def test_chunks_are_given_up_where_layers_are_too_few() -> None:
    config = config_on(num_layers=2)
    running = default_plan(
        PlanConfig(stages=2, replicas=2, microbatch=1, chunks=2, schedule=ScheduleKind.INTERLEAVED),
        CLUSTER,
        num_layers=2,
        batch=8,
        tied=config.model.tied,
    )
    one = next_plan(config, running, (0,), cluster=CLUSTER, moves=False)
    assert one is not None
    assert one.plan.num_chunks == 2
    small = replace(config, train=replace(config.train, batch=3))
    odd = running.of_each(num_microbatches=3)
    odd = with_island_trees(replace(odd, pipelines=odd.pipelines[:1]), CLUSTER.devices)
    found = next_plan(small, odd, (0,), cluster=CLUSTER, moves=False)
    assert found is not None
    check_plan(found.plan, num_devices=len(CLUSTER))


def test_what_a_replica_has_of_its_own_stays_with_its_stages() -> None:
    warm = Pipeline(devices=(0, 2), cut=(3, 3), num_microbatches=4, warmup=(2, 1))
    coded = Pipeline(devices=(4, 6), cut=(3, 3), num_microbatches=4, codecs=(CodecKind.INT8,))
    running = with_trees(warm, coded, schedule=ScheduleKind.EAGER_ONE_F_ONE_B)
    groups = remaining_groups(running, (0, 2, 4, 6), CLUSTER, np.ones(len(CLUSTER)))
    remaining = Remaining(
        running=running, devices=groups.leads, profile=profile_of(6), slow=groups.slow
    )
    assert (warm, coded) in candidates(remaining)
    assert changed_fields(running, running) == []
    alone = next_plan(config_on(), running, (0,), cluster=CLUSTER, moves=False)
    assert alone is not None
    assert alone.changes == ("no `warmup`", "no `codecs`")


@st.composite
def losses(draw: st.DrawFn) -> tuple[Plan, list[int]]:
    """Return plans of unlike replicas with groups and chunks, and the devices that are left."""
    num_chunks = draw(st.sampled_from([1, 2]))
    devices = iter(range(len(CLUSTER)))
    pipelines: list[Pipeline] = []
    for _ in range(draw(st.integers(1, 2))):
        num_ranks = draw(st.integers(1, 2))
        groups = [tuple(next(devices) for _ in range(2)) for _ in range(num_ranks)]
        size = draw(st.integers(1, 2))
        groups = [group[:size] for group in groups]
        num_stages = num_ranks * num_chunks
        cut = (*(1,) * (num_stages - 1), 6 - num_stages + 1)
        pipelines.append(
            Pipeline(
                devices=tuple(group[0] for group in groups),
                peers=tuple(group[1:] for group in groups),
                cut=cut,
                num_microbatches=2 * draw(st.integers(1, 2)),
                microbatch=draw(st.integers(1, 2)),
            )
        )
    kind = ScheduleKind.INTERLEAVED if num_chunks == 2 else draw(st.sampled_from(_KINDS))
    plan = with_trees(*pipelines, schedule=kind, num_chunks=num_chunks)
    used = sorted(device for group in plan.groups for device in group)
    left = draw(st.sets(st.sampled_from(used), min_size=1))
    return plan, sorted(left)


_KINDS = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.GPIPE, ScheduleKind.ZB_H1)


@settings(deadline=None, max_examples=60)
@given(losses())
def test_there_is_a_plan_for_all_that_is_left(loss: tuple[Plan, list[int]]) -> None:
    running, left = loss
    config = config_on(batch=running.batch)
    found = next_plan(config, running, left, cluster=CLUSTER, moves=False)
    assert found is not None
    check_plan(found.plan, num_devices=len(CLUSTER))
    assert found.plan.batch == running.batch
    assert {device for group in found.plan.groups for device in group} <= set(left)
