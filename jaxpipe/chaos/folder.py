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
from pathlib import Path

from jaxpipe.chaos.harness.mounts import can_mount, mount, mounted
from jaxpipe.chaos.harness.tiny_run import Started, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one

_NEVER = 10**6
_ENDS_WITHIN_S = 120.0
_MOST_LINES = 6
_READ_ONLY = "Read-only file system"


def _trial(case: Case) -> None:
    kinds: dict[str, tuple[int, Callable[[Case, Path], None]]] = {
        "no home": (2, _without_home),
        "no access": (_NEVER, _without_access),
    }
    if can_mount(case.folder):
        kinds["read-only"] = _NEVER, _becomes_read_only
    case.name = list(kinds)[case.seed % len(kinds)]
    steps, trial = kinds[case.name]
    trial(case, write_config(case.folder, case.dataset, train={"steps": steps}))


def _without_home(case: Case, config: Path) -> None:
    with started(config, case.dataset, before=("env", "-u", "HOME")) as run:
        begin_s = time.monotonic()
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        case.figures["run_s"] = time.monotonic() - begin_s
    expect(code == 0, f"the run ends with exit code {code}: {run.stderr[-600:]}")


def _without_access(case: Case, config: Path) -> None:
    folder = config.with_name("run")
    with _closed(folder), started(config, case.dataset) as run:
        begin_s = time.monotonic()
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        case.figures["refused_s"] = time.monotonic() - begin_s
    expect(code == 2, f"the run ends with exit code {code}: {run.stderr[-600:]}")
    expect("must be a folder that can be written" in run.stderr, run.stderr[-600:])
    expect(run.stderr.count("\n") == 1, f"not one line: {run.stderr[-600:]}")


def _becomes_read_only(case: Case, config: Path) -> None:
    with mounted(config.with_name("run")) as folder, started(config, case.dataset) as run:
        run.wait_for_steps(3)
        run.ranks()  # notes the memory that they share
        before = len(run.stderr)  # lines of progress
        _remount(folder, run)
        begin_s = time.monotonic()
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        case.figures["over_s"] = time.monotonic() - begin_s
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
        with mounted(folder, "ro"):
            yield
        return
    folder.mkdir(mode=0o500)
    try:
        yield
    finally:
        folder.chmod(0o700)


def _remount(folder: Path, run: Started) -> None:
    """Make a mounted folder read-only, at a moment in which no file of it is open for writing."""

    def is_done() -> bool:
        try:
            mount("-o", "remount,ro", str(folder))
        except subprocess.CalledProcessError:  # busy
            return False
        return True

    run.wait_until(is_done, what="the folder is read-only", timeout_s=_ENDS_WITHIN_S)


FOLDER = Family(
    name="folder",
    does="make the folder of a run read-only during the run or from its start, and unset HOME",
    aim="exit code 1 or 2 and few lines that say why; without HOME, no difference",
    num_trials=2,
    num_trials_full=6,
    trials=one_by_one(_trial),
)
