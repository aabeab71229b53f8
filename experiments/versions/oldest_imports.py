"""Import every module with the oldest versions of the ranges: the shortest test of those ranges.

    python -m experiments.versions.oldest_imports

The versions are those of the cell `py311-oldest`. They are installed without what they depend on
into a folder that lies in front of this environment's packages.
"""

import importlib
import os
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.versions.cell import ROOT, read_cells

_CELL = "py311-oldest"
_INSTALL_S, _IMPORT_S = 300.0, 120.0
_THIS = "experiments.versions.oldest_imports"
_RUNS_ON_IMPORT = "__main__"


def main() -> int:
    """Install what differs, import everything in a process of its own; return its exit code."""
    pins = read_cells()[_CELL].pins
    differing = [f"{name}=={pin}" for name, pin in pins.items() if version(name) != pin]
    with TemporaryDirectory() as folder:
        if differing:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            pip += ["--disable-pip-version-check", "--target", folder, *differing]
            subprocess.run(pip, check=True, timeout=_INSTALL_S)
        path = os.pathsep.join((folder, str(ROOT)))
        code = f"from {_THIS} import import_all; import_all({folder!r})"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": path},
            check=False,
            timeout=_IMPORT_S,
        )
    return done.returncode


def import_all(folder: str) -> None:
    """Import all modules of jaxpipe, with the packages in `folder` in front of all others.

    Raises:
        ImportError: a package lacks what a module takes from it.
    """
    import jaxpipe

    modules = [
        importlib.import_module(each.name)
        for each in pkgutil.walk_packages(jaxpipe.__path__, "jaxpipe.")
        if not each.name.endswith(_RUNS_ON_IMPORT)
    ]
    found = {name: sys.modules[name] for name in ("jax", "flax", "optax", "numpy", "mpi4py")}
    versions = ", ".join(f"{name} {module.__version__}" for name, module in found.items())
    print(f"{len(modules)} modules imported with {versions}")
    for name, module in found.items():
        is_here = (Path(folder) / name).exists()
        assert not is_here or str(module.__file__).startswith(folder), (name, module.__file__)


if __name__ == "__main__":
    sys.exit(main())
