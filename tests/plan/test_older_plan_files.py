"""Files of older formats give the plans that they were written for."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.collective import CodecKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan, parse_resolved_plan, read_plan
from jaxpipe.plan.default import default_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo import Cluster
from tests.plan.test_groups import grouped, in_parts
from tests.plan.test_plan_file import text_of_identity, with_codecs
from tests.plan.test_unlike_replicas import CLUSTER, one_of_each
from tests.plan_section import decided

GOLDEN = Path(__file__).parent / "golden"


def with_own_warmup() -> Plan:
    """Return unlike replicas, of which the first alone has a warm-up of its own."""
    first, second = one_of_each().pipelines
    pipelines = (replace(first, warmup=(3, 1)), second)
    return replace(one_of_each(), schedule=ScheduleKind.EAGER_ONE_F_ONE_B, pipelines=pipelines)


def with_chunks_by_hand() -> Plan:
    """Return a plan whose custom schedule has two chunks on each rank."""
    config = decided(stages=4, chunks=2, schedule=ScheduleKind.INTERLEAVED)
    plan = default_plan(config, TWO_REGION, num_layers=5, batch=4, tied=True)
    return replace(plan, schedule=plan.compute_schedule())


TWO_REGION = topo.load("two-region")
IDENTITY = parse_resolved_plan(text_of_identity(), source="text").plan
WRITTEN = {
    1: (IDENTITY, TWO_REGION),
    2: (with_own_warmup(), CLUSTER),
    3: (grouped(), CLUSTER),
    4: (with_codecs((CodecKind.INT8,), ()), TWO_REGION),
    5: (in_parts(), CLUSTER),
    6: (with_chunks_by_hand(), TWO_REGION),
}


@pytest.mark.parametrize("version", WRITTEN)
def test_a_file_of_an_older_format_gives_its_plan(version: int) -> None:
    plan, cluster = WRITTEN[version]
    path = GOLDEN / f"format_{version}.toml"
    assert path.read_text().startswith(f"format = {version}\n")
    assert read_plan(path, cluster) == plan


def test_a_file_without_names_is_read(tmp_path: Path) -> None:
    text = (GOLDEN / "format_1.toml").read_text()
    names = text[text.index("devices = [") : text.index("sync = [")]
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(names, ""))
    assert read_plan(path, TWO_REGION) == IDENTITY


@pytest.mark.parametrize(
    ("version", "old", "new", "words"),
    [
        (1, "placement = [", "places = [", "`placement` must be an array, is None"),
        (2, "num_microbatches = [3, 1]", "num_microbatches = [3]", "all 2 replicas of `placement`"),
        (2, "    [5],", "    5,", r"`cut` is \[\[3, 2\], 5\]; give one for all 2 replicas"),
        (2, "    [5],", "    [4],", r"`cut` .* same layers in every replica, \[5, 4\] of them"),
        (3, "[[0, 1], 2]", "[[], 2]", "`placement` has a rank without a device"),
        (6, "F0.0,F1.0", "F0.2,F1.0", "rank 0 of 2 holds stage 0, 2: .*, `4F0` is of another one"),
        (6, "F0.0,F1.0", "F0.x,F1.0", "`F0.x` is none; write the stage"),
        (6, '"F0.0,F1.0,F0.1,F1.1,B0.1,B1.1,B0.0,B1.0"', "1", "Expected `str`, got `int`"),
    ],
)
def test_wrong_files_are_refused(
    tmp_path: Path, version: int, old: str, new: str, words: str
) -> None:
    cluster: Cluster = WRITTEN[version][1]
    text = (GOLDEN / f"format_{version}.toml").read_text()
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(PlanError, match=words):
        read_plan(path, cluster)
