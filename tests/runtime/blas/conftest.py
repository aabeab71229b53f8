"""A BLAS for tests: a product compiled for them, and numpy's and MKL's where they are installed."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest

from jaxpipe.attention_calls import AttentionCalls
from jaxpipe.runtime.blas.chosen_products import chosen_products
from jaxpipe.runtime.blas.custom_calls import (
    Blas,
    address_of,
    load_mkl,
    register_attention,
    register_gemm,
)
from jaxpipe.runtime.blas.product_lowering import (
    former_rule,
    gemm_rule,
    lower_products,
    registered,
    registered_attention,
)
from jaxpipe.runtime.process.user_cache import user_cache

_SOURCE = Path(__file__).with_name("plain_gemm.c")


def register_call(blas: Blas) -> str:
    """Register the call as `use_products` does: a process takes no other one of the same name."""
    compiler = shutil.which("cc")
    assert compiler is not None, "these tests need a C compiler"
    return register_gemm(blas, compiler, folder=user_cache(os.environ) / "calls")


@contextmanager
def attention_by(blas: Blas) -> Iterator[AttentionCalls]:
    """Yield the calls of attention with the products of a BLAS."""
    compiler = shutil.which("cc")
    assert compiler is not None, "these tests need a C compiler"
    try:
        yield register_attention(blas, compiler, folder=user_cache(os.environ) / "calls")
    finally:
        registered_attention.cache_clear()  # the next stage of this process sets its own BLAS


@contextmanager
def lowered_by(blas: Blas, *, least: int = 0) -> Iterator[str]:
    """Lower products to those of a BLAS; yields the name of the call."""
    former = former_rule()
    assert former is not None, "the rules of this jax are unknown"
    name = register_call(blas)
    lower_products(gemm_rule(name, former, least=least))
    try:
        yield name
    finally:
        lower_products(former)
        registered.cache_clear()  # the next stage of this process sets its own BLAS


@pytest.fixture(scope="session")
def plain_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with products as they are defined."""
    path = tmp_path_factory.mktemp("plain") / "plain_gemm.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(_SOURCE), "-o", str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def plain_blas(plain_library: Path) -> Blas:
    """Its products."""
    return blas_in(plain_library)


def sgemm_of_numpy() -> int:
    """Return the address of the product of the OpenBLAS that a wheel of numpy brings."""
    files = distribution("numpy").files or ()
    names = [file for file in files if file.name.startswith("libscipy_openblas64_")]
    if not names:
        pytest.skip("numpy has another BLAS")
    library = ctypes.CDLL(str(names[0].locate()))
    return address_of(library.scipy_cblas_sgemm64_)


def blas_in(library: Path) -> Blas:
    """Return the products of a `plain_library`."""
    plain = ctypes.CDLL(str(library))
    return Blas(float32=address_of(plain.plain_sgemm), bfloat16=address_of(plain.plain_bgemm))


@pytest.fixture(scope="module", params=["plain", "openblas", "mkl"])
def call(request: pytest.FixtureRequest, plain_blas: Blas) -> Iterator[str]:
    """All products of the module are the custom call of this name, however small."""
    with lowered_by(blas_of(request.param, plain_blas)) as name:
        yield name


def blas_of(name: str, plain_blas: Blas) -> Blas:
    """Return the products of a BLAS; skips the test where it is not installed."""
    if name == "mkl":
        library = chosen_products(os.environ).library
        if library is None:
            pytest.skip("the extra `mkl` is not installed")
        return load_mkl(library)
    return replace(plain_blas, float32=sgemm_of_numpy()) if name == "openblas" else plain_blas
