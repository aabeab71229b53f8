"""Find a module in the working directory that would take the place of one that jaxpipe imports.

`python -m jaxpipe` searches the working directory first. A `rich.py` there would be imported in
place of the package. The command `jaxpipe`, `python -P`, and all processes that jaxpipe starts
leave the working directory out of their path.
"""

from pathlib import Path

NEEDED = (
    "flatbuffers",
    "flax",
    "jax",
    "jaxlib",
    "jaxtyping",
    "jinja2",
    "mpi4py",
    "msgspec",
    "numpy",
    "optax",
    "rich",
    "safetensors",
    "scipy",
    "tokenizers",
    "tyro",
    "xxhash",
)
"""The modules of `project.dependencies` in pyproject.toml, and jax's own other half."""


def shadowing_module(folder: Path) -> Path | None:
    """Return a module in the first folder of the path that would be imported in place of a package.

    A folder without `__init__.py` takes nobody's place: Python prefers a package further down its
    path. In the folder where jaxpipe itself is installed, the modules are those that it needs.
    """
    if folder == Path(__file__).parents[1]:
        return None
    for name in NEEDED:
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if path.is_file():
                return path
    return None
