"""A run whose folder or home is not as usual: one line, or no difference at all.

::

    read-only     the file system of the run's folder becomes read-only during the run
    no access     it cannot be written from the start
    no home       HOME is not set, as in some containers and batch jobs

The first two mount a file system of their own, which needs root; without it, `no access` takes the
right to write from the folder, and `read-only` is left out.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from jaxpipe.chaos.harness.tiny_run import (
    Started,
    started,
    wait_for_steps,
    wait_until,
    write_config,
)
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried

_NEVER = 10**6
_ENDS_WITHIN_S = 120.0
_MOUNTED_WITHIN_S = 30.0
_MOST_LINES = 6
_READ_ONLY = "Read-only file system"


def _trials(setup: Setup) -> Iterator[Trial]:
    cases: dict[str, Callable[[Path, Path, dict[str, float]], None]] = {
        "no home": _without_home,
        "no access": _without_access,
    }
    if can_mount(setup.folder):
        cases["read-only"] = _becomes_read_only
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        name = list(cases)[seed % len(cases)]
        steps = 2 if name == "no home" else _NEVER
        folder = setup.folder / f"seed-{seed}"
        config = write_config(folder, setup.dataset, train={"steps": steps})
        yield tried(name, partial(cases[name], config, setup.dataset))


def can_mount(folder: Path) -> bool:
    """Return whether this user can mount a file system."""
    if os.geteuid():
        return False
    there = folder / "mounted"
    try:
        with _mounted(there):
            return True
    except (OSError, subprocess.SubprocessError):
        return False


def _without_home(config: Path, dataset: Path, figures: dict[str, float]) -> None:
    with started(config, dataset, before=("env", "-u", "HOME")) as run:
        begin_s = time.monotonic()
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        figures["run_s"] = time.monotonic() - begin_s
    expect(code == 0, f"the run ends with exit code {code}: {run.stderr[-600:]}")


def _without_access(config: Path, dataset: Path, figures: dict[str, float]) -> None:
    folder = config.with_name("run")
    with _closed(folder), started(config, dataset) as run:
        begin_s = time.monotonic()
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        figures["refused_s"] = time.monotonic() - begin_s
    expect(code == 2, f"the run ends with exit code {code}: {run.stderr[-600:]}")
    expect("must be a folder that can be written" in run.stderr, run.stderr[-600:])
    expect(run.stderr.count("\n") == 1, f"not one line: {run.stderr[-600:]}")


def _becomes_read_only(config: Path, dataset: Path, figures: dict[str, float]) -> None:
    with _mounted(config.with_name("run")) as folder, started(config, dataset) as run:
        wait_for_steps(run, steps=3)
        run.ranks()  # notes the memory that they share
        before = len(run.stderr)  # lines of progress
        _remount(folder, run)
        begin_s = time.monotonic()
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        figures["over_s"] = time.monotonic() - begin_s
    said = run.stderr[before:]
    expect(code == 1, f"the run ends with exit code {code}: {said[-600:]}")
    expect(_READ_ONLY in said, f"it does not say why: {said[-600:]}")
    expect("Traceback" not in said, f"a traceback: {said[-600:]}")
    num_lines = said.count("\n")
    expect(num_lines <= _MOST_LINES, f"{num_lines} lines: {said[:600]}")


@contextmanager
def _closed(folder: Path) -> Iterator[None]:
    """Make a folder that nobody can write for the block: root can, unless it is mounted so."""
    if os.geteuid() == 0:
        with _mounted(folder, "ro"):
            yield
        return
    folder.mkdir(mode=0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


@contextmanager
def _mounted(folder: Path, options: str = "size=64m") -> Iterator[Path]:
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True, timeout=_MOUNTED_WITHIN_S)


def _remount(folder: Path, run: Started) -> None:
    """Make a mounted folder read-only, at a moment in which no file of it is open for writing."""

    def is_done() -> bool:
        try:
            _mount("-o", "remount,ro", str(folder))
        except subprocess.CalledProcessError:  # busy
            return False
        return True

    wait_until(is_done, run, what="the folder is read-only", timeout_s=_ENDS_WITHIN_S)


def _mount(*words: str) -> None:
    subprocess.run(("mount", *words), check=True, capture_output=True, timeout=_MOUNTED_WITHIN_S)


FOLDER = Family(
    name="folder",
    does="make the folder of a run read-only during the run or from its start, and unset HOME",
    aim="exit code 1 or 2 and few lines that say why; without HOME, no difference",
    num_trials=2,
    num_trials_full=6,
    trials=_trials,
)
