"""The wheel of this tree, installed into an environment of its own, in other people's projects.

The environment has the wheel alone; its dependencies are those of the calling one. A project has
packages of its own called `models` and `topo`, next to its program.
"""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from zipfile import ZipFile

from experiments.first_hour.runs import SMALL, as_set, prepare
from experiments.first_hour.sandbox import JAXPIPE, Ended, Sandbox
from experiments.first_hour.trial import Trial

_TREE = Path(__file__).parents[2]
_SOURCES = ("jaxpipe", "models", "topo")
_BUILT_WITHIN_S = 300.0
_MODELS = "class Transformer:\n    layers = 3\n"
_TOPO = "MAP = 'of this project'\n"
PROGRAM = f"""
import models, topo
import jaxpipe, jaxpipe.models, jaxpipe.topo

config = jaxpipe.load_config("c.toml", ["train.steps=3", *{SMALL}])
cluster = jaxpipe.load_cluster(config.plan.cluster)
print(jaxpipe.draw_plan(jaxpipe.plan_from(config), cluster))
steps = []
jaxpipe.train(config, observe=steps.append)
print(len(steps), "steps of", config.plan.stages, "ranks")
print(models.Transformer().layers, topo.MAP, jaxpipe.models.GptConfig.__module__)
"""
"""What a project does with jaxpipe as a library: plan, draw, train two ranks, as threads."""


@dataclass(slots=True)
class Environment:
    """A virtual environment with the wheel of this tree, made once; its dependencies are ours."""

    folder: Path
    _is_made: bool = field(default=False, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)

    @property
    def programs(self) -> Path:
        """Where the interpreter and the command `jaxpipe` are; there is no MPI next to them."""
        return self.folder / "venv" / "bin"

    @property
    def site(self) -> Path:
        """Where the wheel is installed."""
        version = f"python{sysconfig.get_python_version()}"
        return self.folder / "venv" / "lib" / version / "site-packages"

    def make(self) -> None:
        """Build the wheel and install it; needs a package index for the build's setuptools."""
        with self._lock:  # several trials need it at once
            if not self._is_made:
                self._make()
                self._is_made = True

    def files(self) -> list[str]:
        """Return the names of the files in the wheel."""
        (wheel,) = (self.folder / "wheels").iterdir()
        with ZipFile(wheel) as archive:
            return archive.namelist()

    def _make(self) -> None:
        tree = self.folder / "tree"
        for name in _SOURCES:
            shutil.copytree(
                _TREE / name,
                tree / name,
                symlinks=True,  # `jaxpipe/models` and `jaxpipe/topo`
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(_TREE / name, tree)
        pip = (sys.executable, "-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
        _call(*pip, "wheel", "--no-deps", "--wheel-dir", f"{self.folder / 'wheels'}", f"{tree}")
        _call(sys.executable, "-m", "venv", "--without-pip", str(self.folder / "venv"))
        (wheel,) = (self.folder / "wheels").iterdir()
        python = str(self.programs / "python")
        _call(*pip, "--python", python, "install", "--no-deps", "--no-compile", str(wheel))
        # Only the wheel's jaxpipe is found: the links of an editable one are not followed.
        (self.site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")


def wheel_trials(environment: Environment) -> tuple[Trial, ...]:
    """Return the trials of the wheel, which is built for the first of them."""

    def project(*words: str, own: bool = True, mpi: bool = False) -> Callable[[Sandbox], Ended]:
        return lambda box: in_project(box, environment, words, own=own, mpi=mpi)

    library = "from jaxpipe import load_config, plan_from; print(plan_from(load_config('c.toml')))"
    settings = as_set("train.steps=3", *SMALL)
    return (
        Trial(
            what="no MPI in the environment",
            before="+",
            run=project("python", "-P", "-m", "jaxpipe", "train", "c.toml", own=False),
            code=2,
            words=("`mpirun`, which starts ranks",),
        ),
        Trial(
            what="a Python without jaxpipe",
            before="No module named jaxpipe",
            run=lambda box: box.run(sys.executable, "-I", "-S", "-m", "jaxpipe"),
            code=1,
            words=("No module named jaxpipe",),
        ),
        Trial(
            what="the wheel as a library of a project without `models`",
            before="+",
            run=project("python", "-c", library, own=False),
            code=0,
        ),
        Trial(
            what="the wheel as a command in a project with its own `models` and `topo`",
            before="143 lines of ImportError",
            run=project("jaxpipe", "show", "c.toml"),
            code=0,
            words=("2 ranks, 2 stages x 1 replica",),
        ),
        Trial(
            what="`python -m jaxpipe` in a project with its own `models` and `topo`",
            before="143 lines of ImportError",
            run=project("python", "-m", "jaxpipe", "show", "c.toml"),
            code=0,
            words=("2 ranks, 2 stages x 1 replica",),
        ),
        Trial(
            what="the wheel as a library of a project with its own `models` and `topo`: plan, "
            "draw, train two ranks",
            before="ImportError that does not say why",
            run=project("python", "program.py"),
            code=0,
            words=("3 steps of 2 ranks", "3 of this project jaxpipe.models."),
        ),
        Trial(
            what="the same project, two ranks of MPI by the command",
            before="143 lines of ImportError",
            run=project("jaxpipe", "train", "c.toml", *settings, mpi=True),
            code=0,
            words=("step     3/3",),
        ),
    )


def in_project(
    box: Sandbox, environment: Environment, words: tuple[str, ...], *, own: bool, mpi: bool = False
) -> Ended:
    """Run a program of the environment in the folder of a project, with its `own` packages.

    With `mpi`, the MPI of the calling environment is on the path.
    """
    environment.make()
    prepare(box)
    if own:
        box.write("models/__init__.py", _MODELS)
        box.write("topo/__init__.py", _TOPO)
        box.write("program.py", PROGRAM)
    program, *arguments = words
    path = f"{JAXPIPE.parent}:/usr/bin:/bin" if mpi else "/usr/sbin:/sbin"
    clean = ("env", "-u", "PYTHONPATH", f"PATH={path}")
    return box.run(*clean, str(environment.programs / program), *arguments)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_BUILT_WITHIN_S)
