"""The loss scale falls and rises as it should, and leaves no trace in what it scales."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.comm import AsyncAllReduce, LocalWorld
from jaxpipe.runtime.checkpoint import Checkpoint, open_checkpoint
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.runtime.stage.loss_scale import LossScale, adjust, initial_loss_scale
from jaxpipe.runtime.stage.optimizer_config import LossScaleConfig
from jaxpipe.runtime.step.worker import copied_errors, settle_errors
from tests.runtime.training import Tree, run_tree, small_tree

pytestmark = pytest.mark.slow

CONFIG = LossScaleConfig(initial=2.0**10, growth_steps=3, largest=2.0**12)
ONE_DEVICE = {"stages": 1, "replicas": 1}
HALVES = {"compute_dtype": "float16"}
EIGHT = {"steps": 8}
HUGE = {"initial": 2.0**24}
"""Over the 128 tokens of a step the loss has a gradient of 2**17, which float16 has not."""


@given(st.lists(st.booleans(), max_size=30))
def test_it_follows_the_rule_step_by_step(steps: list[bool]) -> None:
    state = initial_loss_scale(CONFIG)
    scale, good_steps = CONFIG.initial, 0
    for finite in steps:
        state = adjust(CONFIG, state, finite=finite)
        good_steps = good_steps + 1 if finite else 0
        if not finite:
            scale = max(scale / 2, 1.0)
        elif good_steps == CONFIG.growth_steps:
            scale, good_steps = min(scale * 2, CONFIG.largest), 0
        assert state == LossScale(scale=scale, good_steps=good_steps)


def test_it_never_falls_below_one() -> None:
    state = initial_loss_scale(CONFIG)
    for _ in range(12):
        state = adjust(CONFIG, state, finite=False)
    assert state.scale == 1


@pytest.mark.parametrize(
    ("is_taken", "ratio", "expected"), [(True, 1.0, 6.0), (True, 2.0, 12.0), (False, 0.5, 2.0)]
)
def test_errors_follow_the_scale_and_forget_a_skipped_step(
    is_taken: bool, ratio: float, expected: float
) -> None:
    reducer = AsyncAllReduce(LocalWorld(1).transport(0), feeds_back=True)
    reducer.errors = {7: np.full(3, 4, np.float32)}
    before = copied_errors(reducer)
    reducer.errors[7] += 2
    reducer.errors[8] = np.full(3, 6, np.float32)
    settle_errors(reducer, before, is_taken=is_taken, ratio=ratio)
    assert set(reducer.errors) == ({7, 8} if is_taken else {7})
    assert {value for errors in reducer.errors.values() for value in errors} == {expected}
    reducer.close(timeout_s=1.0)


def skipped(metrics: list[StepMetrics]) -> list[int]:
    """Return the steps that were skipped."""
    counts = [0, *(m.skipped_steps for m in metrics)]
    return [n for n, (before, after) in enumerate(pairwise(counts), 1) if after > before]


def seen(metrics: list[StepMetrics]) -> list[tuple[float | None, ...]]:
    """Return all that a step leaves in the metrics, but for times and the scale itself."""
    return [(m.loss, m.eval_loss, m.grad_norm, m.learning_rate) for m in metrics]


def checkpoint_of(folder: Path, *, step: int) -> Checkpoint:
    return open_checkpoint(folder / "checkpoints" / f"step-{step:08d}")


def of_eight(folder: Path, dataset: Path, **sections: dict[str, Any]) -> Tree:
    """Return a run of eight steps that compiles fast."""
    return small_tree(folder, dataset, **{"train": EIGHT, **sections})


def overflowing(folder: Path, dataset: Path, **sections: dict[str, Any]) -> Tree:
    """Return such a run in float16, with a scale that is far too large at first."""
    given = {"model": HALVES, "loss_scale": HUGE, "checkpoint": {"every": 1, "keep": 9}}
    return of_eight(folder, dataset, **{**given, **sections})


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """Return the folder of a run on one device that overflows at first."""
    folder = tmp_path_factory.mktemp("runs") / "reference"
    run_tree(overflowing(folder, dataset, plan=ONE_DEVICE))
    return folder


def metrics_of(folder: Path) -> list[StepMetrics]:
    return read_metrics(folder / "metrics.jsonl")


def test_an_overflow_skips_the_step_and_halves_the_scale(reference: Path) -> None:
    metrics = metrics_of(reference)
    first = len(skipped(metrics))
    assert 2 <= first <= 6
    assert skipped(metrics) == list(range(1, first + 1))
    assert [m.grad_norm is None for m in metrics] == [m.step <= first for m in metrics]
    assert [m.loss_scale for m in metrics] == [2.0 ** (24 - min(n, first)) for n in range(8)]


def test_a_skipped_step_changes_nothing(reference: Path) -> None:
    last = len(skipped(metrics_of(reference)))
    before, after = checkpoint_of(reference, step=1), checkpoint_of(reference, step=last)
    checksums = {name: tensor.checksum for name, tensor in before.tensors.items()}
    assert checksums == {name: tensor.checksum for name, tensor in after.tensors.items()}
    moments = before.read(name for name in before.tensors if name.startswith(("mu.", "nu.")))
    assert not any(moment.any() for moment in moments.values())


def test_training_goes_on_after_an_overflow(reference: Path, tmp_path: Path, dataset: Path) -> None:
    plain, metrics = run_tree(of_eight(tmp_path, dataset, plan=ONE_DEVICE)), metrics_of(reference)
    taken = 8 - len(skipped(metrics))
    assert metrics[-1].loss == pytest.approx(plain[taken - 1].loss, rel=0.05)
    assert metrics[-1].loss < metrics[0].loss
    # the schedule of the learning rate counts updates, not steps
    rates = [m.learning_rate for m in plain]
    assert [m.learning_rate for m in metrics][8 - taken :] == rates[:taken]


@pytest.mark.parametrize(
    ("plan", "comm"),
    [
        ({}, {"boundary": "bf16"}),
        ({"all_reduce": "hierarchical"}, {"gradients": "top_k", "top_k_fraction": 0.25}),
    ],
)
def test_all_ranks_skip_the_steps_of_one_device(
    reference: Path, tmp_path: Path, dataset: Path, plan: dict[str, Any], comm: dict[str, Any]
) -> None:
    metrics = run_tree(overflowing(tmp_path, dataset, plan=plan, comm=comm))
    expected = metrics_of(reference)
    assert skipped(metrics) == skipped(expected)
    assert [m.loss_scale for m in metrics] == [m.loss_scale for m in expected]
    nearness = 0.05 if "gradients" in comm else 2e-3
    losses = [m.loss for m in metrics]
    assert losses == pytest.approx([m.loss for m in expected], rel=nearness)


def test_a_resumed_run_repeats_everything_bit_by_bit(tmp_path: Path, dataset: Path) -> None:
    scaling = {**HUGE, "growth_steps": 2}
    whole = run_tree(overflowing(tmp_path / "whole", dataset, loss_scale=scaling))
    assert len(skipped(whole)) >= 2
    for step in (1, 7):
        folder = tmp_path / f"resumed-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        for later in range(step + 1, 9):
            shutil.rmtree(folder / "checkpoints" / f"step-{later:08d}")
        resumed = run_tree(overflowing(folder, dataset, loss_scale=scaling), resume=True)
        assert seen(resumed) == seen(whole)
        assert [m.loss_scale for m in resumed] == [m.loss_scale for m in whole]
        assert skipped(resumed) == skipped(whole)
        ends = [checkpoint_of(f, step=8) for f in (tmp_path / "whole", folder)]
        first, second = ({t.checksum for t in end.tensors.values()} for end in ends)
        assert first == second


def test_a_run_goes_on_without_scaling_and_with_it_again(
    reference: Path, tmp_path: Path, dataset: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reference, folder)
    num_skipped = len(skipped(metrics_of(reference)))
    for steps, model, scale in ((9, {}, None), (10, HALVES, 2.0**24)):
        train = {**EIGHT, "steps": steps}
        tree = overflowing(folder, dataset, plan=ONE_DEVICE, model=model, train=train)
        metrics = run_tree(tree, resume=True)
        assert metrics[-1].loss_scale == scale
        assert metrics[8].skipped_steps == num_skipped
    assert metrics[-1].skipped_steps == num_skipped + 1


@pytest.mark.parametrize(
    ("plan", "comm"),
    [
        ({"schedule": "zb-h2", "replicas": 1}, {"boundary": "int8"}),
        (
            {"all_reduce": "hierarchical", "chunks": 2, "schedule": "interleaved-1f1b"},
            {"gradients": "top_k", "top_k_fraction": 0.25},
        ),
    ],
)
def test_without_overflow_a_power_of_two_changes_no_bit(
    tmp_path: Path, dataset: Path, plan: dict[str, Any], comm: dict[str, Any]
) -> None:
    scaling = {"enabled": True, "growth_steps": 1}
    plain = run_tree(of_eight(tmp_path / "plain", dataset, plan=plan, comm=comm))
    tree = of_eight(tmp_path / "scaled", dataset, plan=plan, comm=comm, loss_scale=scaling)
    scaled = run_tree(tree)
    assert [m.loss_scale for m in plain] == [None] * 8
    assert [m.loss_scale for m in scaled] == [2.0**n for n in range(16, 24)]
    assert seen(scaled) == seen(plain)
    ends = [checkpoint_of(tmp_path / name, step=8) for name in ("plain", "scaled")]
    first, second = ({t.name: t.checksum for t in end.tensors.values()} for end in ends)
    assert first == second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial": 0.5}, "`initial` must be from 1 to .*, not 0.5"),
        ({"initial": 2.0**30}, "`initial` must be at most `largest`"),
        ({"factor": 1.0}, "`factor` must be above 1 and at most .*, not 1.0"),
        ({"growth_steps": 0}, "`growth_steps` must be at least 1, not 0"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossScaleConfig(**change)
