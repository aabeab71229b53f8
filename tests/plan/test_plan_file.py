"""Plan files: read back exactly, readable, and refused when they are wrong."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import (
    Plan,
    ResolvedPlan,
    check_plan,
    default_plan,
    draw_plan,
    parse_resolved_plan,
    plan_text,
    read_plan,
    read_resolved_plan,
    resolved_plan_text,
    write_plan,
)
from jaxpipe.schedule import ScheduleKind, one_f_one_b, write_schedule
from jaxpipe.search import Task, build
from jaxpipe.search.generators.changes import neighbour
from tests.plan.models import cluster_of, profile_of
from tests.plan_section import decided


def test_a_schedule_of_its_own_is_kept(tmp_path: Path):
    cluster = topo.load("two-region")
    config = decided(stages=2, replicas=1, schedule=ScheduleKind.ZB_H1)
    named = default_plan(config, cluster, num_layers=2, batch=3, tied=False)
    own = replace(named, schedule=named.compute_schedule(), all_reduce=AllReduceKind.RING)
    write_plan(own, cluster, tmp_path / "plan.toml")
    assert read_plan(tmp_path / "plan.toml", cluster) == own
    wrong = own.of_each(num_microbatches=4)
    write_plan(wrong, cluster, tmp_path / "plan.toml")
    with pytest.raises(PlanError, match=r"2 rows and 3 microbatches, .* 2 ranks and 4"):
        read_plan(tmp_path / "plan.toml", cluster)


def test_a_schedule_comes_from_a_file(tmp_path: Path):
    cluster = topo.load("two-region")
    path = tmp_path / "schedule.csv"
    write_schedule(one_f_one_b(num_stages=2, num_microbatches=4), path)
    config = decided(stages=2, replicas=1, schedule_file=str(path))
    plan = default_plan(config, cluster, num_layers=2, batch=4, tied=False)
    assert (
        plan.train_schedule() == replace(plan, schedule=ScheduleKind.ONE_F_ONE_B).train_schedule()
    )
    with pytest.raises(PlanError, match=r"2 rows and 4 microbatches, .* 2 ranks and 8"):
        default_plan(config, cluster, num_layers=2, batch=8, tied=False)


KINDS = [kind for kind in ScheduleKind if kind is not ScheduleKind.INTERLEAVED]
"""Those that take any number of microbatches."""


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from(KINDS), st.integers(0, 99))
def test_a_file_gives_back_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    stages: int,
    replicas: int,
    schedule: ScheduleKind,
    seed: int,
):
    cluster = cluster_of(*[1.0] * (stages * replicas), seed=seed)
    task = Task(cluster=cluster, profile=profile_of(stages), batch=4 * replicas, tied=True)
    placement = np.arange(stages * replicas).reshape(replicas, stages)
    plan = build(task, placement, microbatch=2, schedule=schedule)
    plan = neighbour(task, plan, random=np.random.default_rng(seed))
    path = tmp_path_factory.getbasetemp() / "plan.toml"
    write_plan(plan, cluster, path)
    assert read_plan(path, cluster) == plan


def test_a_file_gives_back_chunks(tmp_path: Path):
    cluster = topo.load("two-region")
    config = decided(stages=4, chunks=2, schedule=ScheduleKind.INTERLEAVED)
    plan = default_plan(config, cluster, num_layers=5, batch=16, tied=True)
    path = tmp_path / "plan.toml"
    write_plan(plan, cluster, path)
    assert read_plan(path, cluster) == plan
    path.write_text(path.read_text().replace("num_chunks = 2", "num_chunks = 3"))
    with pytest.raises(PlanError, match=r"`num_stages` .4. must be a multiple of `num_chunks` .3."):
        read_plan(path, cluster)


def with_codecs(*codecs: tuple[CodecKind, ...]) -> Plan:
    """Return a plan of two replicas of two stages with their own codecs between the stages."""
    config = decided(cluster="two-region", stages=2, replicas=2)
    plan = default_plan(config, topo.load("two-region"), num_layers=5, batch=16, tied=True)
    pairs = zip(plan.pipelines, codecs, strict=True)
    return replace(plan, pipelines=tuple(replace(each, codecs=own) for each, own in pairs))


@pytest.mark.parametrize(
    ("codecs", "written"),
    [
        (((CodecKind.INT8,), (CodecKind.INT8,)), 'codecs = ["int8"]'),
        (((CodecKind.INT8,), (CodecKind.NONE,)), '"ohio-1:0"]\ncodecs = ["int8"]\n'),
        (((CodecKind.INT8,), ()), '"virginia-1:0"]\n'),
    ],
)
def test_a_file_gives_back_the_codecs_of_boundaries(
    tmp_path: Path, codecs: tuple[tuple[CodecKind, ...], ...], written: str
):
    cluster, path = topo.load("two-region"), tmp_path / "plan.toml"
    plan = with_codecs(*codecs)
    write_plan(plan, cluster, path)
    text = path.read_text()
    assert text.startswith("format = 7")
    assert written in text
    assert read_plan(path, cluster) == plan
    assert "between the stages of replica" in draw_plan(plan, cluster)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["int8"]', '["int8", "none"]', "one for each boundary between stages, .* 2 for 2 stages"),
        ('["int8"]', '["top_k"]', "must not have top_k: .* choose from none, bf16"),
        ('["int8"]', '["zip"]', "Invalid enum value 'zip'"),
        ('["int8"]', '[["int8"]]', "is not a plan: Invalid enum value|Expected `str`, got `array`"),
    ],
)
def test_wrong_codecs_are_refused(tmp_path: Path, old: str, new: str, words: str):
    text = plan_text(with_codecs(*[(CodecKind.INT8,)] * 2), topo.load("two-region"))
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=words):
        read_plan(path, topo.load("two-region"))


def test_several_stages_per_rank_have_one_codec():
    config = decided(stages=4, chunks=2, schedule=ScheduleKind.INTERLEAVED)
    plan = default_plan(config, topo.load("two-region"), num_layers=5, batch=16, tied=True)
    with pytest.raises(
        PlanError,
        match=r"`codecs` .int8, int8, int8. .* .`num_chunks` 2.; set `comm.boundary` instead",
    ):
        check_plan(plan.of_each(codecs=(CodecKind.INT8,) * 3), num_devices=4)


def text_of_identity() -> str:
    cluster = topo.load("two-region")
    config = decided(cluster="two-region", stages=2, replicas=2)
    plan = default_plan(config, cluster, num_layers=5, batch=16, tied=True)
    return plan_text(plan, cluster)


def test_a_file_reads_well():
    golden = Path(__file__).parent / "golden" / "identity_2x2.toml"
    assert text_of_identity() == golden.read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("format = 7", "format = ", "is not a plan"),
        ("format = 7", "format = true", "has `format` True, .* reads 1 to 7; plan again"),
        ("tied = true", "", "missing required field `tied`"),
        ('schedule = "1f1b"', 'schedule = "2f2b"', r"Invalid enum value '2f2b'"),
        ("format = 7", "format = 8", "has `format` 8, .* reads 1 to 7; plan again"),
        ("cut = [3, 2]\n", "", "`cut` is missing; state it at the top for all replicas, or in"),
        ("= [2, 3]\n", "= [2, []]\n", "`placement` has a rank without a device: name one"),
        ('"two-region"', '"laptop"', "`cluster` 'laptop', the configuration 'two-region'"),
        ("= [2, 3]\n", "= [2]\n", r"rows of \[2, 1\] devices, `cut` has 2 stages"),
        ("= [2, 3]\n", "= [2, 4]\n", r"each of the 4 devices at most once"),
        ("= [2, 3]\n", "= [2, 0]\n", r"each of the 4 devices at most once"),
        ("    [0, 2],", "    [0, 1],", r"`sync` \[\(0, 1\), \(1, 3\)\] must name each rank"),
        ("sync_all = [[", "sync_all = [[true, ", "made of ranks, and has True"),
        ("sync_all = [[0, 1], [2, 3]]", "sync_all = [0, 1, 2]", r"all 4 ranks.*\[0, 1, 2\]"),
        (
            '["ohio-0:0"',
            '["ohio-9:0"',
            "'ohio-9:0' in `devices` for rank 0, .* has 'ohio-0:0' there",
        ),
        ("num_microbatches = 8", "num_microbatches = 0", "must be at least 1"),
        ("num_microbatches = 8", "num_microbatches = 100000000", "must be at most 8,192"),
        ('"two-region"', '"two\\nregion"', "`cluster` must be letters, digits"),
        ('["ohio-0:0"', '["\\u001b[2J"', "`devices` must be the names of devices"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, old: str, new: str, words: str):
    text = text_of_identity()
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=words):
        read_plan(path, topo.load("two-region"))


def test_a_resolved_plan_needs_no_cluster(tmp_path: Path):
    path = tmp_path / "plan.toml"
    path.write_text(text_of_identity())
    resolved = read_resolved_plan(path)
    assert resolved == ResolvedPlan.of(
        read_plan(path, topo.load("two-region")), topo.load("two-region")
    )
    assert resolved.devices == ("ohio-0:0", "ohio-1:0", "virginia-0:0", "virginia-1:0")
    assert parse_resolved_plan(resolved_plan_text(resolved), source="a message") == resolved


def test_a_file_without_names_is_read_for_its_cluster(tmp_path: Path):
    path = tmp_path / "plan.toml"
    text = text_of_identity()
    path.write_text("\n".join(row for row in text.splitlines() if "devices" not in row))
    cluster = topo.load("two-region")
    assert read_plan(path, cluster) == parse_resolved_plan(text, source="text").plan
    with pytest.raises(
        PlanError, match=r"4 ranks and 0 names in `devices`: .*; set `plan.file` to it"
    ):
        read_resolved_plan(path)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(PlanError, match=r"cannot read the plan .*: No such file"):
        read_plan(tmp_path / "none.toml", topo.load("two-region"))


@pytest.mark.parametrize("name", ["\\u001b[2J", "a b", "../x", "x:y"])
def test_a_resolved_plan_has_names(tmp_path: Path, name: str):
    path = tmp_path / "plan.toml"
    path.write_text(text_of_identity().replace("ohio-1:0", name))
    with pytest.raises(PlanError, match="`devices` must be the names of devices") as raised:
        read_resolved_plan(path)
    assert str(raised.value).isprintable()


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "plan.toml")
    with pytest.raises(PlanError, match=r"cannot read the plan .* not a regular file"):
        read_plan(tmp_path / "plan.toml", topo.load("two-region"))
