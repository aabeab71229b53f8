"""Runs that continue with other islands: as if those of the checkpoint had met at its step."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.config import config_from, job_from
from jaxpipe.errors import CheckpointError
from jaxpipe.outer import OuterConfig
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.outer.met_islands import met
from jaxpipe.runtime.outer.outer_snapshot import needed_outer_tensors
from tests.runtime.training import Tree, run_tree, small_tree

OTHER = OuterConfig(islands=7, every=1, learning_rate=0.5, momentum=0.25)
NAME = "blocks.0.up"  # in the second of two fragments


@dataclass(frozen=True)
class Stored:
    """A checkpoint in memory."""

    tensors: Mapping[str, np.ndarray]
    metadata: Mapping[str, Any]
    step: int = 6

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        return {name: self.tensors[name] for name in names}


@given(
    values=st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=4),
    shares=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    is_pending=st.booleans(),
    kept=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_all_start_from_the_mean(
    values: list[float], shares: list[int], is_pending: bool, kept: float
) -> None:
    islands, anchor, momentum, pending = len(values), 0.5, 2.0, 0.125
    # With eager updates, an island keeps everything.
    keeps = {"eager": True} if kept == 1 else {"local_fraction": kept}
    before = {"islands": islands, "every": 2, "fragments": 2, **keeps}
    weights = np.array(shares[:islands]) / sum(shares[:islands])
    numbers: dict[str, float] = {
        NAME: anchor,
        f"momentum.{NAME}": momentum,
        f"pending.{NAME}": pending,
        **{f"island.{m}.{NAME}": value for m, value in enumerate(values)},
        **{f"island.{m}.mu.{NAME}": value**2 for m, value in enumerate(values)},
    }
    saved = Stored(
        {name: np.array([value], np.float32) for name, value in numbers.items()},
        {
            "config": {"outer": before},
            "outer_shares": weights.tolist(),
            "outer_in_sync": False,
            "outer_in_flight": [1] if is_pending else [],
        },
    )
    local, moves = np.array(values), momentum
    if is_pending:
        moves = OTHER.momentum * momentum + pending
        moved = anchor - OTHER.learning_rate * (pending + OTHER.momentum * moves)
        local = kept * local + (1 - kept) * moved
    state = met(saved, OTHER)
    names = [f"island.6.{NAME}", NAME, f"momentum.{NAME}", f"island.6.mu.{NAME}"]
    expected = [weights @ local, weights @ local, moves, weights @ np.square(values)]
    found = state.read(names)
    assert [found[name][0] for name in names] == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert state.metadata["outer_in_sync"]
    assert not state.metadata["outer_in_flight"]


def test_the_same_islands_continue_as_they_are() -> None:
    saved = Stored({}, {"config": {"outer": {"islands": 7}}})
    assert met(saved, OTHER) is saved


def test_islands_start_from_a_run_without() -> None:
    metadata = {"config": {}, "loss_scale": None, "skipped_steps": 2}
    tensors = {NAME: np.array([3.0]), f"mu.{NAME}": np.array([5.0])}
    state = met(Stored(tensors, metadata), OTHER)
    found = state.read([NAME, f"momentum.{NAME}", f"island.1.mu.{NAME}", "island.1.counters"])
    assert [each.tolist() for each in found.values()] == [[3.0], [0.0], [5.0], [0.0, 0.0, 0.0, 2.0]]


@pytest.mark.parametrize(
    "metadata",
    [
        {"config": {"outer": {"islands": "two"}}},
        {"config": {}, "outer_in_flight": 3},
        {"config": {"outer": {"islands": 2}}, "outer_shares": [1.0]},
    ],
)
def test_damaged_metadata_are_one_error(metadata: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="resume from an older step"):
        met(Stored({}, metadata), OTHER)


LINEAR: Tree = {
    "plan": {"stages": 1, "replicas": 4},
    "optimizer": {
        "name": "sgd",
        "weight_decay": 0.0,
        "clip_norm": 1e6,
        "learning_rate": 0.3,
        "warmup_steps": 0,
        "schedule": "constant",
    },
    "checkpoint": {"every": 2, "keep": 9},
}
MEAN = {"every": 1, "learning_rate": 1.0, "momentum": 0.0}
"""With SGD and its momentum, which are linear, islands that meet in every step are synchronous data
parallelism; and so is the mean of their momenta."""


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(2, 4, 0), (0, 4, 1), (4, 2, 2)])
def test_islands_that_always_meet_may_become_any_others(
    tmp_path: Path, dataset: Path, numbers: tuple[int, ...]
) -> None:
    whole = run_tree(small_tree(tmp_path / "whole", dataset, **LINEAR, train={"steps": 6}))
    folder = tmp_path / "run"
    found = []
    for steps, islands in zip((2, 4, 6), numbers, strict=True):
        outer: Tree = {"outer": {"islands": islands, **MEAN}} if islands else {}
        tree = small_tree(folder, dataset, **LINEAR, **outer, train={"steps": steps})
        found = run_tree(tree, resume=steps > 2)
    # The held-out loss is that of the whole model; losses are those of the first island.
    losses = [[m.eval_loss for m in run if m.eval_loss is not None] for run in (found, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def tree_of(
    folder: Path, dataset: Path, *, islands: int, replicas: int, **sections: dict[str, Any]
) -> Tree:
    outer = {"islands": islands, "every": 4, "delay": 1, "momentum": 0.0}
    plan = {"stages": 2, "replicas": replicas}
    given = {"plan": plan, "train": {"steps": 8}, **sections}
    return small_tree(folder, dataset, **given, **({"outer": outer} if islands else {}))


@pytest.mark.slow
@pytest.mark.parametrize(("islands", "replicas"), [(0, 1), (1, 2), (4, 4)])
def test_what_lost_islands_have_trained_is_kept(
    tmp_path: Path, dataset: Path, islands: int, replicas: int
) -> None:
    """From step 6, where two islands are apart: without a learning rate the mean stays."""
    every = {"checkpoint": {"every": 2, "keep": 9}}
    run_tree(tree_of(tmp_path, dataset, islands=2, replicas=2, **every))
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000008")
    middle = open_checkpoint(latest(tmp_path))
    own = {
        name: middle.read([f"island.{m}.{name}" for m in (0, 1)])
        for name in middle.tensors
        if f"island.1.{name}" in middle.tensors
    }
    assert own
    frozen = {"optimizer": {"learning_rate": 1e-30}, **every}
    run_tree(tree_of(tmp_path, dataset, islands=islands, replicas=replicas, **frozen), resume=True)
    last = open_checkpoint(latest(tmp_path))
    assert last.step == 8
    for name, tensors in own.items():
        first, second = tensors.values()
        assert np.abs(first - second).max() > 1e-5 or first.size < 64, name
        np.testing.assert_allclose(last.read([name])[name], (first + second) / 2, atol=1e-6)


@pytest.mark.slow
def test_a_rank_reads_what_its_stage_needs_of_all_islands(tmp_path: Path, dataset: Path) -> None:
    run_tree(tree_of(tmp_path, dataset, islands=2, replicas=2, checkpoint={"every": 2, "keep": 9}))
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000008")
    middle = open_checkpoint(latest(tmp_path))
    before = OuterConfig(islands=2, every=4, delay=1)
    for islands, replicas in ((0, 1), (4, 4), (2, 2)):
        config = config_from(tree_of(tmp_path, dataset, islands=islands, replicas=replicas))
        plan = plan_from(config)
        job = job_from(config, plan)
        needed = [
            set(needed_outer_tensors(job, middle.tensors, rank=rank, before=before))
            for rank in range(plan.num_ranks)
        ]
        assert set.union(*needed) == {n for n in middle.tensors if not n.startswith("metrics")}
        numbers = [{n.split(".")[1] for n in each if n.startswith("island.")} for each in needed]
        if islands == 2:
            assert numbers == [{"0"}, {"0"}, {"1"}, {"1"}]
        else:
            assert all(each == {"0", "1"} for each in numbers)
        for first, second in pairwise(needed):
            assert first != second or islands == 4
