"""The choice of what computes large products of matrices on the CPU of this machine."""

import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.user_cache import has_instructions
from jaxpipe.topo.this_machine import num_jax_gpus

SWITCH: Final = "JAXPIPE_BLAS"
"""The variable that leaves all products to XLA if it is `off`."""

_PACKAGE = "mkl"
_LIBRARY = "libmkl_rt.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Who computes large products, and with XLA, why.

    Args:
        name: the library and its version, or `XLA`.
        library: the library of a BLAS, None for XLA.
        compiler: the C compiler that compiles the call of the library.
        reason: why there is no BLAS; empty if there is one.
    """

    name: str
    library: Path | None = None
    compiler: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Return who computes, with the reason.

        >>> print(Products(name="XLA", reason="`JAXPIPE_BLAS` is off"))
        XLA (`JAXPIPE_BLAS` is off)
        """
        return f"{self.name} ({self.reason})" if self.reason else self.name


def by_xla(reason: str) -> Products:
    """Return that XLA computes all products."""
    return Products(name="XLA", reason=reason)


def chosen_products(environment: Mapping[str, str]) -> Products:
    """Return who computes large products in processes with this environment; imports no jax.

    The same environment and packages give the same answer: it is a part of the key of what is
    measured and kept.

    Raises:
        ConfigError: the variable is neither `off` nor `auto`.
    """
    switch = environment.get(SWITCH, "") or "auto"
    if switch not in ("auto", "off"):
        raise ConfigError(
            f"`{SWITCH}` must be auto or off, not {switch!r:.40}; auto, the default, takes MKL if "
            "the extra `mkl` is installed"
        )
    if switch == "off":
        return by_xla(f"`{SWITCH}` is off")
    if num_jax_gpus(environment) > 0:
        return by_xla("jax computes on a GPU")
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return by_xla("MKL is for Linux on x86-64")
    # Held to AVX2, like XLA, MKL took 1.17 times as long for a stage (measured on AVX-512 cores).
    if not has_instructions("avx512f"):
        return by_xla("this processor has no AVX-512, without which MKL was slower")
    return _with_mkl(environment)


def _with_mkl(environment: Mapping[str, str]) -> Products:
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        return by_xla("the extra `mkl` is not installed")
    files = (file for file in package.files or () if file.name.startswith(_LIBRARY))
    library = next((Path(str(file.locate())).resolve() for file in files), None)
    if library is None or not library.is_file():
        return by_xla(f"the package `{_PACKAGE}` {package.version} has no {_LIBRARY}")
    compiler = shutil.which(environment.get("CC") or "cc", path=environment.get("PATH"))
    if compiler is None:
        return by_xla("MKL is installed, but no C compiler, `cc`, that compiles its call")
    return Products(name=f"MKL {package.version}", library=library, compiler=compiler)
