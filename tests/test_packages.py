"""Every package says in a sorted `__all__` what it offers, and offers it."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOTS = ("jaxpipe", "models", "topo")
PACKAGES = sorted(
    ".".join(path.parent.parts) for root in ROOTS for path in Path(root).rglob("__init__.py")
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
        ("models", ("jax", "flax", "numpy", "jaxpipe")),
        ("topo", ("jax", "mpi4py", "matplotlib", "jaxpipe")),
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
