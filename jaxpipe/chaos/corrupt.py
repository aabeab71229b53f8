"""Corrupt files of checkpoints: each fault is detected, and the newest intact checkpoint is used.

A tiny run of 2 stages x 2 replicas leaves three checkpoints. Each trial breaks a file in a copy of
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
from random import Random
from typing import Any

import numpy as np

from jaxpipe.chaos.harness.corruption import BREAKS, Break, Damage, Folders
from jaxpipe.chaos.harness.tiny_run import environment, write_config
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect
from jaxpipe.errors import CheckpointError
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


def _trials(setup: Setup) -> Iterator[Trial]:
    """Break one file per trial, each in a fresh copy."""
    saved = _train(setup)
    contents = {step: Content.of(open_checkpoint(path)) for step, path in _folders(saved).items()}
    assert tuple(contents) == _STEPS, tuple(contents)
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        copy = shutil.copytree(saved, setup.folder / f"seed-{seed}")
        # By seed: a trial that is repeated alone breaks the same file in the same way.
        trial = _trial(copy, BREAKS[seed % len(BREAKS)], Random(seed), contents)
        if trial.passed:
            shutil.rmtree(copy)
        yield trial


def _train(setup: Setup) -> Path:
    """Train in other processes, saving after each step, and return the folder of the run.

    In this process JAX would leave threads behind, and other families fork.
    """
    steps = len(_STEPS)
    config = write_config(
        setup.folder / "saved",
        setup.dataset,
        model={"tied": True},
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


def _trial(run: Path, break_it: Break, random: Random, contents: Mapping[int, Content]) -> Trial:
    damage = break_it(_folders(run), random)
    begin_s = time.perf_counter()
    with _warnings() as warned:
        why = _judge(run, damage, contents, warned)
    figures = {"verification_s": time.perf_counter() - begin_s}
    return Trial(name=damage.what, passed=not why, why=why, figures=figures)


def _judge(run: Path, damage: Damage, contents: Mapping[int, Content], warned: list[str]) -> str:
    """Return what is wrong with the checkpoint that a resume would use; empty if nothing is."""
    intact = max(contents.keys() - damage.steps)
    try:
        found = newest_valid(run)
        content = Content.of(found)
    except CheckpointError as error:
        return f"nothing was found to resume from: {error}"
    except Exception as error:  # any other error is a traceback for the user
        return f"{type(error).__name__} instead of a verdict: {error}"
    if found.step != intact:
        return f"step {found.step} was taken, not {intact}"
    if not content.equals(contents[intact]):
        return f"step {intact} is not what was saved"
    silent = [step for step in contents if step > intact and not _is_named(step, warned)]
    return f"no warning names step {silent[0]}" if silent else ""


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
    trials=_trials,
)
