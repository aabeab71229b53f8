"""Mistakes that need more than a command: a run, a full disk, another environment or project.

Each gets a folder of its own. A trial that needs root is not tried for other users.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from experiments.first_hour.attacks import write_trace
from experiments.first_hour.mistakes import CONFIG
from experiments.first_hour.sandbox import JAXPIPE, Ended, Sandbox

_TREE = Path(__file__).parents[2]
_SOURCES = ("jaxpipe", "models", "topo")
_STARTS_WITHIN_S = 60.0
_MOST_LINES = 6
"""Warnings, for example of each save that fails, and then one line."""
_ONE_RANK = ("--set", "plan.stages=1", "--set", "sample.tokens=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A mistake, what came of it in the first trial, the exit code, and words of the answer."""

    what: str
    before: str
    run: Callable[[Sandbox], Ended]
    code: int
    words: tuple[str, ...] = ()
    needs_root: bool = False


@dataclass(slots=True)
class Environment:
    """A virtual environment with the wheel of this tree, made once; its dependencies are ours."""

    folder: Path
    _is_made: bool = field(default=False, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    @property
    def python(self) -> Path:
        """The interpreter; it has no MPI next to it."""
        return self.folder / "venv" / "bin" / "python"

    def make(self) -> None:
        """Build the wheel and install it; needs a package index for the build's setuptools."""
        with self._lock:  # several trials need it at once
            if not self._is_made:
                self._make()
                self._is_made = True

    def _make(self) -> None:
        tree, wheels = self.folder / "tree", self.folder / "wheels"
        for name in _SOURCES:
            shutil.copytree(
                _TREE / name,
                tree / name,
                symlinks=True,  # `jaxpipe/models` and `jaxpipe/topo`
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(_TREE / name, tree)
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
        _call(*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(tree))
        _call(sys.executable, "-m", "venv", "--without-pip", str(self.folder / "venv"))
        (wheel,) = wheels.iterdir()
        _call(*pip, "--python", str(self.python), "install", "--no-deps", str(wheel))
        site = self.folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}"
        # Only the wheel's jaxpipe is found: the links of an editable one are not followed.
        (site / "site-packages" / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")


def trials(environment: Environment) -> tuple[Trial, ...]:
    """Return all trials; some of them start `python` in an environment with the wheel."""

    def foreign(*words: str, own: bool) -> Callable[[Sandbox], Ended]:
        return lambda box: _in_foreign_project(box, environment, words, own=own)

    library = "from jaxpipe import load_config, plan_from; print(plan_from(load_config('c.toml')))"
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
            words=("last checkpoint could not be saved",),
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
        Trial(
            what="no MPI in the environment",
            before="+",
            run=foreign("-P", "-m", "jaxpipe", "train", "c.toml", own=False),
            code=2,
            words=("ranks are started with `mpirun`",),
        ),
        Trial(
            what="the wheel as a library of a project without `models`",
            before="+",
            run=foreign("-c", library, own=False),
            code=0,
        ),
        Trial(
            what="the wheel as a command in a project with its own `models`",
            before="143 lines of ImportError",
            run=foreign("-P", "-m", "jaxpipe", "show", "c.toml", own=True),
            code=0,
        ),
        Trial(
            what="`python -m jaxpipe` in a project with its own `models`",
            before="143 lines of ImportError",
            run=foreign("-m", "jaxpipe", "show", "c.toml", own=True),
            code=0,
        ),
        Trial(
            what="the wheel as a library of a project with its own `models`",
            before="ImportError that does not say why",
            run=foreign("-c", library, own=True),
            code=0,
        ),
    )


def holds(trial: Trial, ended: Ended) -> bool:
    """Return whether a trial ended as it should, with few lines and its words among them."""
    lines = ended.err.splitlines()
    # A library raises: its traceback is Python's, and the last line is the answer.
    is_library = trial.what.startswith("the wheel as a library")
    is_short = len(lines) <= _MOST_LINES or is_library
    return ended.code == trial.code and is_short and all(w in ended.err for w in trial.words)


def describe(ended: Ended) -> str:
    """Say how a trial ended: the last line of its errors tells why."""
    if ended.code is None or ended.is_refusal:
        return str(ended)
    last = (ended.err.strip().splitlines() or ["done"])[-1]
    return f"exit code {ended.code}: {last}"


def _train(box: Sandbox, *settings: str, folder: Path | None = None) -> Ended:
    """Train with one rank, in the folder of the run that is given."""
    _prepare(box)
    changes = [word for setting in settings for word in ("--set", setting)]
    where = ["--set", f"run.folder={folder}"] if folder is not None else []
    return box.jaxpipe("train", "c.toml", *_ONE_RANK, *changes, *where)


def _prepare(box: Sandbox) -> None:
    box.write("c.toml", CONFIG)
    done = box.jaxpipe("data", "prepare", "--out", "data")
    assert done.code == 0, done.err


def _two_runs(box: Sandbox) -> Ended:
    _prepare(box)
    command = [str(JAXPIPE), "train", "c.toml", *_ONE_RANK, "--set", "train.steps=100000"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=box.folder, stdout=quiet, stderr=quiet) as first:
        try:
            deadline_s = time.monotonic() + _STARTS_WITHIN_S
            while not (box.folder / "run" / "lock").exists() and time.monotonic() < deadline_s:
                time.sleep(0.1)
            return box.jaxpipe("train", "c.toml", *_ONE_RANK)
        finally:
            first.kill()


def _on_disk(options: str) -> Callable[[Sandbox], Ended]:
    """Train into a disk of its own, with a checkpoint of 10 MB after each of three steps."""

    def run(box: Sandbox) -> Ended:
        disk = box.folder / "disk"
        with _mounted(disk, options):
            settings = ("train.steps=3", "checkpoint.every=1")
            return _train(box, *settings, folder=disk / "run")

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


def _in_foreign_project(
    box: Sandbox, environment: Environment, words: tuple[str, ...], *, own: bool
) -> Ended:
    """Start the environment's Python in the folder of a project, which may have its own models."""
    environment.make()
    _prepare(box)
    if own:
        box.write("models/__init__.py", "class Transformer: ...\n")
    clean = ("env", "-u", "PYTHONPATH", "PATH=/usr/sbin:/sbin")
    return box.run(*clean, str(environment.python), *words)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)
