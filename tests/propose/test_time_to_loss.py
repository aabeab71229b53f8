"""Which compression is first to a loss: over slow links islands, over fast ones nothing."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.cli.plan_loss import loss_settings
from jaxpipe.config import check_plan_fits, config_of_settings
from jaxpipe.errors import ConfigError, PlanError, UserError
from jaxpipe.plan import islands_of
from jaxpipe.propose.loss_proposal import LossProposal
from jaxpipe.propose.options import Goal, OuterQuestion, SearchOptions
from jaxpipe.propose.region_islands import island_groups, island_plan
from jaxpipe.propose.time_to_loss import num_searches, propose_to_loss
from jaxpipe.topo import Cluster, load

OPTIONS = SearchOptions(objective=Goal.LOSS, budget=0.5)
CLUSTER = """
name = "apart"
[[hosts]]
region = ["west", "east"]
count = {count}
tflops = 0.01
[inside_region]
latency_ms = 0.1
bandwidth_gbps = 10
[across_regions]
latency_ms = {latency_ms}
bandwidth_gbps = {gbps}
[[trunks]]
source = "west"
destination = "east"
capacity_gbps = {gbps}
[[trunks]]
source = "east"
destination = "west"
capacity_gbps = {gbps}
"""


def write(folder: Path, *, gbps: float = 1, latency_ms: float = 1, count: int = 2) -> Path:
    path = folder / "apart.toml"
    path.write_text(CLUSTER.format(gbps=gbps, latency_ms=latency_ms, count=count))
    return path


def apart(folder: Path, **changes: Any) -> Cluster:
    return load(str(write(folder, **changes)))


def settings_of(
    tmp_path: Path, *, gbps: float, latency_ms: float = 20, **changes: Any
) -> list[str]:
    path = write(tmp_path, gbps=gbps, latency_ms=latency_ms)
    fields = {"model.num_layers": 4, "model.dim": 128, "model.num_heads": 4, **changes}
    fixed = ["model.sequence=128", "model.vocabulary=256", f"plan.cluster={path}"]
    return [*fixed, "train.batch=16", *(f"{name}={value}" for name, value in fields.items())]


def proposed(tmp_path: Path, **changes: Any) -> LossProposal:
    return propose_to_loss(config_of_settings(settings_of(tmp_path, **changes)), OPTIONS)


def test_islands_are_first_over_slow_links_and_nothing_over_fast_ones(tmp_path: Path) -> None:
    slow = proposed(tmp_path, gbps=0.005)
    assert slow.best.name.startswith("2 islands")
    fast = proposed(tmp_path, gbps=1000, latency_ms=0.01)
    assert fast.best.name == "uncompressed"
    for answer in (slow, fast):
        times = [method.equal_loss_s for method in answer.by_time]
        assert times == sorted(times)
        assert answer.seconds(answer.best) == answer.steps * answer.best.equal_loss_s


def test_each_method_fits_the_configuration_that_it_needs(tmp_path: Path) -> None:
    answer = proposed(tmp_path, gbps=0.05)
    assert not answer.refusals
    kinds = {method.name.split(",")[0] for method in answer.methods}
    assert {"uncompressed", "codecs", "rank", "rank and codecs", "2 islands"} <= kinds
    for method in answer.methods:
        config = config_of_settings([*settings_of(tmp_path, gbps=0.05), *loss_settings(method)])
        check_plan_fits(config, method.plan)


def test_islands_lie_inside_of_regions_and_have_the_same_stages(tmp_path: Path) -> None:
    config = config_of_settings(settings_of(tmp_path, gbps=0.05, **{"plan.stages": 2}))
    cluster = apart(tmp_path, gbps=0.05, latency_ms=20)
    (groups, *_) = island_groups(cluster, most=2)
    plan = island_plan(config, cluster, groups, OPTIONS, seconds=0.3).plan
    assert (plan.num_stages, plan.num_replicas, plan.batch) == (2, 2, 16)
    for island, devices in zip(islands_of(plan, num_islands=2), groups, strict=True):
        used = {device for row in island.plan.placement for device in row}
        assert used == set(devices)


def test_islands_of_unlike_speed_have_shares_in_proportion(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, gbps=0.05, **{"plan.stages": 1})
    path = tmp_path / "apart.toml"
    # Hosts of the west are three times as fast.
    east = '[[hosts]]\nregion = "east"\ncount = 1\ntflops = 0.01\n[inside_region]'
    text = CLUSTER.format(gbps=0.05, latency_ms=20, count=1)
    text = text.replace('["west", "east"]', '"west"').replace("0.01", "0.03")
    path.write_text(text.replace("[inside_region]", east))
    config, cluster = config_of_settings(settings), load(str(path))
    (groups, *_) = island_groups(cluster, most=2)
    plan = island_plan(config, cluster, groups, OPTIONS, seconds=0.3).plan
    shares = {
        cluster.devices[pipeline.devices[0]].region: pipeline.num_samples
        for pipeline in plan.pipelines
    }
    assert shares == {"west": 12, "east": 4}
    assert plan.has_equal_cuts


@given(count=st.integers(1, 6), most=st.integers(2, 8))
def test_groups_are_of_one_size_and_of_one_region_each(
    tmp_path_factory: pytest.TempPathFactory, count: int, most: int
) -> None:
    cluster = apart(tmp_path_factory.getbasetemp(), count=count)
    for groups in island_groups(cluster, most=most):
        assert 2 <= len(groups) <= most
        assert len({len(devices) for devices in groups}) == 1
        numbers = [number for devices in groups for number in devices]
        assert len(numbers) == len(set(numbers))
        for devices in groups:
            assert len({cluster.devices[number].region for number in devices}) == 1


def test_what_a_method_cannot_do_is_said(tmp_path: Path) -> None:
    answer = proposed(tmp_path, gbps=0.05, **{"train.steps": 97, "data.pack": "true"})
    refusals = dict(answer.refusals)
    assert "`train.steps` (97) must be a multiple" in refusals["islands"]
    assert "`model.bottlenecks`" in refusals["rank"]
    assert {method.name for method in answer.methods} == {"uncompressed", "codecs"}


def test_parts_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    cluster = apart(tmp_path)
    (groups, *_) = island_groups(cluster, most=2)
    for changes, words in (
        ({"plan.replicas": 1}, r"`plan.replicas` \(1\) must be a multiple"),
        ({"train.batch": 15}, r"`train.batch` \(15\) must be a multiple"),
    ):
        config = config_of_settings([*settings_of(tmp_path, gbps=1, **changes)])
        with pytest.raises(PlanError, match=words):
            island_plan(config, cluster, groups, OPTIONS, seconds=0.1)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("outer.islands=2", r"`outer.islands` \(2\) must be left out with `--objective loss`"),
        ("comm.boundary=int8", r"`comm.boundary` \(int8\) must be left out"),
        ("model.bottlenecks=[[2,8]]", r"`model.bottlenecks` .* must be left out"),
    ],
)
def test_compression_of_the_configuration_is_refused(
    tmp_path: Path, setting: str, words: str
) -> None:
    config = config_of_settings([*settings_of(tmp_path, gbps=1), setting])
    with pytest.raises(UserError, match=words):
        propose_to_loss(config, OPTIONS)


def test_outer_loops_are_not_compared_twice(tmp_path: Path) -> None:
    options = SearchOptions(objective=Goal.LOSS, outer=OuterQuestion.AUTO)
    with pytest.raises(ConfigError, match="`--outer` \\(auto\\) must be left out"):
        propose_to_loss(config_of_settings(settings_of(tmp_path, gbps=1)), options)


def test_all_searches_are_counted(tmp_path: Path) -> None:
    # Four without islands, two and four islands of two hosts in each of two regions.
    assert num_searches(config_of_settings(settings_of(tmp_path, gbps=1))) == 6
