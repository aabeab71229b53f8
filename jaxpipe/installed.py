"""Versions of installed packages, as results and bug reports name them; this imports no jax."""

from importlib import metadata
from typing import Final

PACKAGES: Final = ("jaxpipe", "jax", "jaxlib", "flax", "optax", "numpy", "mpi4py")
"""Those on which the results of a run depend."""
_NOT_INSTALLED: Final = "not installed"


def version_of(package: str) -> str:
    """Return the version of a package; jaxpipe also runs from a clone that was not installed.

    >>> version_of("a-package-that-is-not-there")
    'not installed'
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED


def installed_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the version of each package."""
    return {package: version_of(package) for package in packages}
