"""Corrupt files of checkpoints: each fault is detected, and the newest intact checkpoint is used.

A tiny run of 2 stages leaves three checkpoints. Each trial breaks a file in a copy of
them and looks, as `--resume` does, for the newest intact one: it must be the newest untouched one,
bit by bit as it was saved, and a warning must name each one that was passed over.

No flipped bit may pass. A manifest is compared byte by byte with the encoding of its content, so
not even a blank may differ. In a shard, the header is JSON without blanks but for
its end, its offsets have to cover the file, and every tensor has a checksum, also the second copy
of the tied embedding, which the last stage saves and no resume reads.
"""

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxpipe.chaos.harness.corruption import BREAKS, Damage, Folders
from jaxpipe.chaos.harness.tiny_run import environment, write_config
from jaxpipe.chaos.harness.trial import Case, Family, Setup, expect, one_by_one
from jaxpipe.errors import CheckpointError, RunError
from jaxpipe.runtime.checkpoint import Checkpoint, newest_valid, open_checkpoint

_STEPS = (1, 2, 3)
_TRAINED_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a checkpoint."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Content":
        """Read the content of a checkpoint."""
        return cls(metadata=checkpoint.metadata, tensors=dict(checkpoint.read(checkpoint.tensors)))

    def equals(self, other: "Content") -> bool:
        """Return whether both are equal, bit by bit."""
        mine, others = self.tensors, other.tensors
        return (
            self.metadata == other.metadata
            and mine.keys() == others.keys()
            and all(_bits(mine[name]) == _bits(others[name]) for name in mine)
        )


def _train(setup: Setup) -> Path:
    """Train in other processes, saving after each step, and return the folder of the run.

    In this process JAX would leave threads behind, and other families fork.
    """
    steps = len(_STEPS)
    config = write_config(
        setup.folder / "saved",
        setup.dataset,
        model={"tied": True},
        plan={"replicas": 1},  # replicas save nothing more
        train={"steps": steps, "eval_every": steps},
        checkpoint={"keep": steps},  # all: a resume needs older ones to go back to
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "jaxpipe", "train", str(config)],
        env=environment(setup.dataset),
        capture_output=True,
        text=True,
        timeout=_TRAINED_WITHIN_S,
        check=False,
    )
    expect(ended.returncode == 0, f"a run ends with {ended.returncode}: {ended.stderr[-600:]}")
    return config.with_name("run")


def _trial(case: Case) -> None:
    """Break one file in a fresh copy: a trial that is repeated alone breaks it in the same way."""
    saved = _folders(case.reference)
    contents = {step: Content.of(open_checkpoint(path)) for step, path in saved.items()}
    copy = shutil.copytree(case.reference, case.folder)
    damage = BREAKS[case.seed % len(BREAKS)](_folders(copy), case.chance())
    case.name = damage.what
    begin_s = time.perf_counter()
    with _warnings() as warned:
        try:
            _judge(copy, damage, contents, warned)
        finally:
            case.figures["verification_s"] = time.perf_counter() - begin_s


def _judge(run: Path, damage: Damage, contents: Mapping[int, Content], warned: list[str]) -> None:
    """Check the checkpoint that a resume would use."""
    intact = max(contents.keys() - damage.steps)
    try:
        found = newest_valid(run)
        content = Content.of(found)
    except CheckpointError as error:
        raise RunError(f"`--resume` finds nothing: {error}") from error
    except Exception as error:  # any other error is a traceback for the user
        raise RunError(f"`--resume` raises {type(error).__name__}: {error}") from error
    expect(found.step == intact, f"step {found.step} was taken, not {intact}")
    expect(content.equals(contents[intact]), f"step {intact} is not what was saved")
    for step in range(intact + 1, _STEPS[-1] + 1):
        expect(_is_named(step, warned), f"no warning names step {step}")


def _is_named(step: int, warned: list[str]) -> bool:
    return any(f"step-{step:08d} is broken" in line for line in warned)


def _folders(run: Path) -> Folders:
    return {step: run / "checkpoints" / f"step-{step:08d}" for step in _STEPS}


def _bits(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, array.tobytes()


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the log of checkpoints, instead of printing it."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("jaxpipe.runtime.checkpoint")
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False  # expected warnings are no output
    try:
        yield lines
    finally:
        logger.propagate = propagates
        logger.removeHandler(handler)


CORRUPT = Family(
    name="corrupt",
    does="flip, cut, remove, exchange or zero parts of a checkpoint's files, drop a tensor",
    aim="detected, reported, and the newest intact one used",
    num_trials=39,
    num_trials_full=300,
    trials=one_by_one(_trial, prepare=_train, keeps_passed=False),
)
