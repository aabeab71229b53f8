"""The versions of the software of a host, in one line."""

import platform

from jaxpipe.installed import installed_versions


def version_line() -> str:
    """Return the versions that a bug report needs; importing jax for its own takes a second."""
    versions = installed_versions(("jaxpipe", "jax", "mpi4py"))
    packages = (f"{name} {version}" for name, version in versions.items())
    return f"{', '.join(packages)}, Python {platform.python_version()}"
