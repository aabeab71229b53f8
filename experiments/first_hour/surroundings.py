"""Mistakes that need more than a command: a run, a full disk, another environment or project.

Each gets a folder of its own. A trial that needs root is not tried for other users.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.first_hour.attacks import write_trace
from experiments.first_hour.runs import SMALL, as_set, prepare, run_trials
from experiments.first_hour.sandbox import JAXPIPE, Ended, Sandbox
from experiments.first_hour.trial import Trial
from experiments.first_hour.wheel import Environment, wheel_trials

_STARTS_WITHIN_S = 400.0


def trials(folder: Path) -> tuple[Trial, ...]:
    """Return all trials; a folder is for what some of them share: a run, an installed wheel."""
    environment = Environment(folder / "environment")
    # The longest first: the last to end alone would leave one of two workers without work.
    return (*wheel_trials(environment), *_disk_trials(), *run_trials(folder / "trained"))


def _disk_trials() -> tuple[Trial, ...]:
    return (
        Trial(
            what="learning rate 1e30",
            before="NaN, advice to resume without a checkpoint",
            run=lambda box: _train(box, "optimizer.learning_rate=1e30", "train.steps=20"),
            code=1,
            words=("gradients must be finite", "lower `optimizer.learning_rate`"),
        ),
        Trial(
            what="learning rate 1e30, three steps",
            before="losses NaN, a useless model saved, exit 0",
            run=lambda box: _train(box, "optimizer.learning_rate=1e30", "train.steps=3"),
            code=0,
            words=("the model is of no use",),
        ),
        Trial(
            what="two runs in one folder",
            before="accepted, metrics mixed",
            run=_two_runs,
            code=2,
            words=("is in use by process",),
        ),
        Trial(
            what="a disk with room for no checkpoint",
            before="+ a warning a save, fails at the end",
            run=_on_disk("size=8m"),
            code=1,
            words=("cannot save the last checkpoint",),
            needs_root=True,
        ),
        Trial(
            what="a disk with room for `keep` checkpoints, and not for one more",
            before="nothing was saved any more, exit 1",
            run=_on_disk("size=26m"),
            code=0,
            words=("there is no room for another checkpoint",),
            needs_root=True,
        ),
        Trial(
            what="a read-only folder",
            before="10 s, 287 lines",
            run=_on_disk("ro"),
            code=2,
            words=("must be a folder that can be written",),
            needs_root=True,
        ),
        Trial(
            what="no matplotlib",
            before="+",
            run=_without_matplotlib,
            code=2,
            words=("jaxpipe[plot]",),
        ),
    )


def _train(
    box: Sandbox, *changes: str, folder: Path | None = None, settings: tuple[str, ...] = SMALL
) -> Ended:
    """Train with one rank, in the folder of the run that is given."""
    prepare(box)
    where = () if folder is None else (f"run.folder={folder}",)
    words = as_set("plan.stages=1", "sample.tokens=0", *settings, *changes, *where)
    return box.jaxpipe("train", "c.toml", *words)


def _two_runs(box: Sandbox) -> Ended:
    prepare(box)
    words = ("train", "c.toml", *as_set(*SMALL, "train.steps=100000"))
    quiet = subprocess.DEVNULL
    with subprocess.Popen((JAXPIPE, *words), cwd=box.folder, stdout=quiet, stderr=quiet) as first:
        try:
            deadline_s = time.monotonic() + _STARTS_WITHIN_S
            while not (box.folder / "run" / "lock").exists() and time.monotonic() < deadline_s:
                time.sleep(0.1)
            return box.jaxpipe(*words)
        finally:
            first.kill()


def _on_disk(options: str) -> Callable[[Sandbox], Ended]:
    """Train into a disk of its own, with a checkpoint of 10 MB after each of three steps."""

    def run(box: Sandbox) -> Ended:
        disk = box.folder / "disk"
        with _mounted(disk, options):
            changes = ("train.steps=3", "checkpoint.every=1")
            # The size of the disk fits this many checkpoints of this model.
            return _train(box, *changes, folder=disk / "run", settings=())

    return run


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    _call("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        _call("umount", str(folder))


def _without_matplotlib(box: Sandbox) -> Ended:
    box.write("path/matplotlib/__init__.py", "raise ImportError('none here')\n")
    write_trace(box, rank_name="rank 0")
    path = os.pathsep.join(filter(None, (str(box.folder / "path"), os.environ.get("PYTHONPATH"))))
    words = ("trace", "trace.json", "--png", "trace.png")
    return box.run("env", f"PYTHONPATH={path}", str(JAXPIPE), *words)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)
