"""The versions of the software of a host, in one line."""

import platform
from importlib import metadata


def version_line() -> str:
    """Return the versions that a bug report needs; importing jax for its own takes a second."""
    names = ("jaxpipe", "jax", "mpi4py")
    packages = (f"{name} {metadata.version(name)}" for name in names)
    return f"{', '.join(packages)}, Python {platform.python_version()}"
