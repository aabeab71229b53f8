"""Assertions about runs with faults: equal bit by bit, or nothing lost but ranks.

After permanent loss of ranks, every sample of every step was read once by the first stage and once
by the last, in the attempt whose step counted, and the losses equal those of an undisturbed run up
to the rounding of all-reduces over other numbers of replicas. Training amplifies such a difference:
with a learning rate of 0.01, one of 1e-8 doubles every five steps. So the rate is 0.001 here, the
run is short, and a relative difference of 1e-3 is allowed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.chaos.harness.sample_log import read_fed, wanted_rows, wrongly_fed
from jaxpipe.chaos.harness.tiny_run import changed, undisturbed, write_config
from jaxpipe.chaos.harness.trial import expect
from jaxpipe.config import load_config
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.data import open_dataset
from jaxpipe.runtime.metrics.records import METRICS_TENSOR, read_metrics


def expect_equal(run: Path, reference: Path) -> None:
    """Compare two run folders: the same last step, weights, moments and losses, bit for bit.

    Metrics in a checkpoint are compared as losses: they have times.

    Raises:
        RunError: they differ; the message says where.
    """
    ours, theirs = newest_valid(run), newest_valid(reference)
    expect(ours.step == theirs.step, f"the last step is {ours.step}, not {theirs.step}")
    names, own = (sorted({*each.tensors} - {METRICS_TENSOR}) for each in (theirs, ours))
    expect(own == names, "the checkpoints hold other tensors")
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


_NUM_STEPS = 80
ENDS_WITHIN_S = 300.0
_TOLERANCE = 1e-3


def write_lossless_config(folder: Path, dataset: Path, /, **sections: Mapping[str, Any]) -> Path:
    """Write the configuration of a run that three ranks train faster than two."""
    base: dict[str, dict[str, Any]] = {
        "train": {"steps": _NUM_STEPS, "eval_every": _NUM_STEPS},
        "model": {"num_layers": 6},
        "optimizer": {"learning_rate": 1e-3},
    }
    return write_config(folder, dataset, **changed(base, sections))


def train_undisturbed(folder: Path, dataset: Path, /, **sections: Mapping[str, Any]) -> Path:
    """Train without faults, and return the folder of the run.

    Raises:
        RunError: it did not end with exit code 0.
    """
    config = write_lossless_config(folder, dataset, **sections)
    return undisturbed(config, dataset, timeout_s=ENDS_WITHIN_S)


def check_samples(config: Path, dataset: Path) -> None:
    """Check the samples that the ranks have recorded.

    Raises:
        RunError: a sample was lost, duplicated or replaced.
    """
    read = load_config(config)
    wanted = wanted_rows(
        np.asarray(open_dataset(dataset, verify=False).train),
        seed=read.run.seed,
        batch=read.train.batch,
        sequence=read.train.sequence or read.model.sequence,
        steps=read.train.steps,
    )
    why = wrongly_fed(read_fed(config.parent), wanted)
    expect(not why, why)


def check_losses(run: Path, reference: Path) -> float:
    """Return the largest relative difference of a loss from that of the undisturbed run.

    Raises:
        RunError: it is too large, or a step was not done exactly once.
    """
    ours, theirs = (read_metrics(each / "metrics.jsonl") for each in (run, reference))
    expect([m.step for m in ours] == [m.step for m in theirs], "not every step was done once")
    differs = max(abs(m.loss / other.loss - 1) for m, other in zip(ours, theirs, strict=True))
    expect(differs <= _TOLERANCE, f"a loss differs by {differs:.2g} of it")  # a NaN does, too
    return differs
