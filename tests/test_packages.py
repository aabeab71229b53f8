"""Every package says in a sorted `__all__` what it offers, and offers it."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import jaxpipe

ROOTS = ("jaxpipe", "models", "topo")
"""Their folders; `jaxpipe.models` and `jaxpipe.topo` are links, which `rglob` does not follow."""
PACKAGES = sorted(
    ".".join(path.parent.parts if root == "jaxpipe" else ("jaxpipe", *path.parent.parts))
    for root in ROOTS
    for path in Path(root).rglob("__init__.py")
)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_a_package_offers_is_there_and_sorted(name: str) -> None:
    package = importlib.import_module(name)
    offered = getattr(package, "__all__", [])
    assert list(offered) == sorted(offered, key=_constants_classes_functions)
    assert [each for each in offered if not hasattr(package, each)] == []


def _constants_classes_functions(name: str) -> tuple[int, str]:
    """Order as ruff's RUF022 does."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize(
    ("name", "heavy"),
    [
        ("jaxpipe", ("jax", "numpy", "mpi4py", "tyro", "jaxpipe.topo", "jaxpipe.models")),
        ("jaxpipe.cli.main", ("jax", "numpy", "mpi4py", "jaxpipe.topo", "jaxpipe.models")),
        ("jaxpipe.run.forecast.simulate_step", ("jax", "flax", "mpi4py", "matplotlib")),
        ("jaxpipe.models", ("jax", "flax", "numpy", "jaxpipe.errors")),
        ("jaxpipe.topo", ("jax", "mpi4py", "matplotlib", "jaxpipe.errors")),
        ("jaxpipe.schedule", ("jax", "numpy", "mpi4py")),
        ("jaxpipe.network", ("jax", "matplotlib", "mpi4py")),
        ("jaxpipe.trace", ("jax", "matplotlib", "mpi4py")),
        ("jaxpipe.simulate", ("jax", "matplotlib", "mpi4py")),
        ("jaxpipe.plan", ("jax", "matplotlib", "mpi4py")),
        ("jaxpipe.comm", ("mpi4py",)),
        ("jaxpipe.config", ("jax", "flax", "mpi4py")),
        ("jaxpipe.runtime.data", ("jax", "tokenizers")),
        ("jaxpipe.runtime.checkpoint", ("jax",)),
    ],
)
def test_importing_a_package_leaves_alone_what_it_may_not_need(
    name: str, heavy: tuple[str, ...]
) -> None:
    code = f"import sys, {name}; print(sorted({set(heavy)!r} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.stdout == "[]\n", process.stderr


def test_names_of_the_front_door_leave_jax_alone_until_something_trains() -> None:
    code = (
        "import sys, jaxpipe\n"
        "lazy = [name for name in jaxpipe.__all__ if name not in ('run_ranks', 'train')]\n"
        "[getattr(jaxpipe, name) for name in lazy]\n"
        "print(sorted({'jax', 'flax', 'mpi4py', 'matplotlib'} & set(sys.modules)))\n"
        "jaxpipe.train\n"
        "print('jax' in sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.stdout == "[]\nTrue\n", process.stderr


def test_type_checkers_and_python_find_the_same_names_at_the_front_door() -> None:
    tree = ast.parse(Path("jaxpipe/__init__.py").read_text())
    block = next(each for each in tree.body if isinstance(each, ast.If))
    checked = {
        alias.asname or alias.name: getattr(importlib.import_module(each.module), alias.name)
        for each in block.body
        if isinstance(each, ast.ImportFrom) and each.module is not None
        for alias in each.names
    }
    assert {"__version__", *checked} == set(jaxpipe.__all__)
    assert all(getattr(jaxpipe, name) is value for name, value in checked.items())
    assert dir(jaxpipe) == sorted(jaxpipe.__all__)
    assert jaxpipe.__version__ == metadata.version("jaxpipe")


def test_no_name_of_the_front_door_is_that_of_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(jaxpipe.__path__)}
    assert modules & set(jaxpipe.__all__) == set()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'jaxpipe' has no attribute 'plans'"):
        jaxpipe.plans  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("root", ROOTS)
def test_the_wheel_holds_every_data_file_of_a_package(root: str) -> None:
    setuptools = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]
    package = root if root == "jaxpipe" else f"jaxpipe.{root}"
    globs = setuptools["package-data"][package]
    packed = {file for glob in globs for file in Path(root).glob(glob)}
    data = {
        file
        for file in Path(root).rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
    }
    assert data == packed
    assert setuptools["packages"]["find"]["include"] == ["jaxpipe*"]


def test_type_checkers_find_the_types_of_the_package() -> None:
    assert Path("jaxpipe/py.typed").is_file()


def test_the_citation_names_the_version_that_is_built() -> None:
    (cited,) = re.findall(r"^version: (.+)$", Path("CITATION.cff").read_text(), re.MULTILINE)
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert cited == project["version"]
