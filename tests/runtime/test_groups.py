"""Ranks of several devices, as a plan says: losses of one device, tried on eight forced ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.systems import System
from jaxpipe.config import check_plan_fits, config_from
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Sharing
from jaxpipe.runtime.rank_mesh import MeshConfig, first_device, rank_mesh
from tests.programs.grouped import BATCH, MODEL, layout_plan, unlike_plan
from tests.programs.report import report_of
from tests.runtime.training import tiny_tree

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what `tests.programs.grouped` has found."""
    return report_of("grouped", tmp_path_factory.mktemp("grouped"), num_devices=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["megatron-p2t4", "zero3", "in parts", "in samples", "mixed"])
def test_losses_are_those_of_one_device(report: dict[str, Any], name: str) -> None:
    losses = report["losses"]
    assert len(losses["alone"]) == 4  # of two steps, and the held-out ones before and after
    assert losses[name] == pytest.approx(losses["alone"], rel=ROUNDING)


@pytest.mark.slow
def test_a_sharded_stage_is_divided_and_gathered(report: dict[str, Any]) -> None:
    found = report["sharded"]
    assert found["held"] == found["whole"] / 2
    # What one device lacks it gets from the other, in both directions.
    assert sum(found["forward"].values()) > 0
    assert sum(found["backward"].values()) > 0


def test_the_group_of_a_rank_is_its_mesh() -> None:
    plan, none = unlike_plan(), MeshConfig()
    meshes = [rank_mesh(plan, none, rank=rank) for rank in range(3)]
    assert meshes == [MeshConfig(tensor=4), MeshConfig(tensor=2), none]
    parts = rank_mesh(replace(plan, sharing=Sharing.SEQUENCE), none, rank=1)
    assert parts == MeshConfig(tensor=2, sequence_parallel=True)
    samples = replace(plan, sharing=Sharing.DATA)
    assert rank_mesh(samples, none, rank=0) == MeshConfig(data=4)
    first, second = plan.pipelines
    mixed = replace(plan, pipelines=(replace(first, data_parts=(2,)), second))
    assert rank_mesh(mixed, none, rank=0) == MeshConfig(data=2, tensor=2)
    assert rank_mesh(mixed, none, rank=1) == MeshConfig(tensor=2)
    zero3 = layout_plan(System.ZERO3)
    assert zero3.sharing is Sharing.ZERO3
    assert rank_mesh(zero3, none, rank=1) == MeshConfig(data=4, sharded=True)
    firsts = [first_device(plan, none, rank=rank, num_devices=7) for rank in range(3)]
    assert firsts == [0, 4, 6]
    # A process of its own, with the devices of its rank alone.
    assert [first_device(plan, none, rank=rank, num_devices=4) for rank in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"mesh": {"tensor": 2}}, "`plan.file` .* and `mesh` .* exclude each other"),
        ({"model": {"num_heads": 2}}, r"`mesh.tensor` \(4\) must divide `model.num_heads` \(2\)"),
    ],
)
def test_what_groups_do_not_combine_with_is_refused(
    sections: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = {**MODEL, "tied": True, **sections.pop("model", {})}
    tree = tiny_tree(tmp_path, tmp_path, model=model, train={"batch": BATCH}, **sections)
    with pytest.raises(ConfigError, match=words):
        check_plan_fits(config_from(tree), unlike_plan())


def test_a_mesh_shards_over_an_axis_that_it_has() -> None:
    with pytest.raises(ValueError, match="`sharded` splits parameters over the axes `data` and"):
        MeshConfig(sharded=True)
