"""A BLAS for tests: a product compiled for them, and numpy's and MKL's where they are installed."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest

from jaxpipe.attention_calls import AttentionCalls
from jaxpipe.runtime.blas.chosen_products import chosen_products
from jaxpipe.runtime.blas.custom_calls import register_attention, register_sgemm, sgemm_of_mkl
from jaxpipe.runtime.blas.product_lowering import (
    former_rule,
    lower_products,
    registered,
    registered_attention,
    sgemm_rule,
)
from jaxpipe.runtime.process.user_cache import user_cache

_SOURCE = Path(__file__).with_name("plain_sgemm.c")


def register_call(sgemm: int) -> str:
    """Register the call as `use_products` does: a process takes no other one of the same name."""
    compiler = shutil.which("cc")
    assert compiler is not None, "these tests need a C compiler"
    return register_sgemm(sgemm, compiler, folder=user_cache(os.environ) / "calls")


@contextmanager
def attention_by(sgemm: int) -> Iterator[AttentionCalls]:
    """Yield the calls of attention with the products of a `cblas_sgemm`."""
    compiler = shutil.which("cc")
    assert compiler is not None, "these tests need a C compiler"
    try:
        yield register_attention(sgemm, compiler, folder=user_cache(os.environ) / "calls")
    finally:
        registered_attention.cache_clear()  # the next stage of this process sets its own BLAS


@contextmanager
def lowered_by(sgemm: int, *, least: int = 0) -> Iterator[str]:
    """Lower products to a `cblas_sgemm`; yields the name of the call."""
    former = former_rule()
    assert former is not None, "the rules of this jax are unknown"
    name = register_call(sgemm)
    lower_products(sgemm_rule(name, former, least=least))
    try:
        yield name
    finally:
        lower_products(former)
        registered.cache_clear()  # the next stage of this process sets its own BLAS


@pytest.fixture(scope="session")
def plain_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with a `cblas_sgemm` that multiplies as it is defined."""
    path = tmp_path_factory.mktemp("plain") / "plain_sgemm.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(_SOURCE), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def plain_sgemm(plain_library: Path) -> int:
    """The address of that `cblas_sgemm`."""
    return sgemm_in(plain_library)


def sgemm_of_numpy() -> int:
    """Return the address of the product of the OpenBLAS that a wheel of numpy brings."""
    files = distribution("numpy").files or ()
    names = [file for file in files if file.name.startswith("libscipy_openblas64_")]
    if not names:
        pytest.skip("numpy has another BLAS")
    library = ctypes.CDLL(str(names[0].locate()))
    address = ctypes.cast(library.scipy_cblas_sgemm64_, ctypes.c_void_p).value
    assert address is not None
    return address


def sgemm_in(library: Path) -> int:
    """Return the address of the product of a `plain_library`."""
    address = ctypes.cast(ctypes.CDLL(str(library)).plain_sgemm, ctypes.c_void_p).value
    assert address is not None
    return address


@pytest.fixture(scope="module", params=["plain", "openblas", "mkl"])
def call(request: pytest.FixtureRequest, plain_sgemm: int) -> Iterator[str]:
    """All products of the module are the custom call of this name, however small."""
    with lowered_by(sgemm_of(request.param, plain_sgemm)) as name:
        yield name


def sgemm_of(name: str, plain_sgemm: int) -> int:
    """Return the address of the product of a BLAS; skips the test where it is not installed."""
    if name == "mkl":
        library = chosen_products(os.environ).library
        if library is None:
            pytest.skip("the extra `mkl` is not installed")
        return sgemm_of_mkl(library)
    return sgemm_of_numpy() if name == "openblas" else plain_sgemm
