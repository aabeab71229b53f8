"""What a run has come to: its last checkpoint and its losses, to be compared bit by bit."""

from pathlib import Path

import numpy as np

from jaxpipe.chaos.tried import expect
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.metrics import read_metrics


def expect_equal(run: Path, reference: Path) -> None:
    """Compare two run folders: the same last step, weights, moments and losses, bit for bit.

    Raises:
        RunError: they differ; it says where.
    """
    ours, theirs = newest_valid(run), newest_valid(reference)
    expect(ours.step == theirs.step, f"the last step is {ours.step}, not {theirs.step}")
    names = sorted(theirs.tensors)
    expect(sorted(ours.tensors) == names, "the checkpoints hold other tensors")
    mine, other = ours.read(names), theirs.read(names)
    differing = [name for name in names if not _are_bitwise_equal(mine[name], other[name])]
    expect(not differing, f"{len(differing)} of {len(names)} tensors differ: {differing[:3]}")
    losses = [[(m.step, m.loss, m.eval_loss) for m in _metrics(each)] for each in (run, reference)]
    expect(losses[0] == losses[1], f"losses differ: {losses[0]}, not {losses[1]}")


def _metrics(run: Path):
    return read_metrics(run / "metrics.jsonl")


def _are_bitwise_equal(one: np.ndarray, other: np.ndarray) -> bool:
    same_layout = (one.shape, one.dtype) == (other.shape, other.dtype)
    return same_layout and one.tobytes() == other.tobytes()
