"""The call is compiled once, in a folder of the user alone; wrong calls are errors of XLA."""

import logging
import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.blas import chosen_products as choice
from jaxpipe.runtime.blas import product_lowering
from jaxpipe.runtime.blas.chosen_products import SWITCH, Products, chosen_products
from jaxpipe.runtime.blas.custom_calls import Blas, compiled_calls, load_mkl
from jaxpipe.runtime.blas.product_lowering import (
    former_rule,
    lower_products,
    registered,
    use_products,
)
from jaxpipe.runtime.process.compile_cache import variables_of_cache
from tests.runtime.blas.conftest import register_call

FLAGS = {"left_is_transposed": np.bool_(False), "right_is_transposed": np.bool_(False)}


def test_the_call_is_compiled_once_for_its_owner_alone(tmp_path: Path):
    folder = tmp_path / "calls"
    path = compiled_calls("gemm", "cc", folder)
    written = path.stat()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(written.st_mode) == 0o700
    assert compiled_calls("gemm", "cc", folder) == path
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    assert os.listdir(folder) == [path.name]


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path):
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write to"):
        compiled_calls("gemm", "cc", tmp_path)


def test_a_compiler_that_fails_is_named_with_its_error(tmp_path: Path):
    with pytest.raises(OSError, match=r"false cannot compile gemm\.c: exit code 1"):
        compiled_calls("gemm", "false", tmp_path / "calls")
    assert os.listdir(tmp_path / "calls") == []


def test_a_library_without_the_function_is_refused():
    with pytest.raises(OSError, match=r"is too old: .*undefined symbol"):
        load_mkl(Path("libc.so.6"))


@pytest.mark.parametrize(
    ("shapes", "result", "flags", "message"),
    [
        (((4, 5), (6, 7)), (4, 7), FLAGS, "the shapes of factors and result do not fit"),
        (((4, 5), (5, 7)), (4, 8), FLAGS, "the shapes of factors and result do not fit"),
        (((4, 5, 1), (5, 7)), (4, 7), FLAGS, "must be matrices of float32 or of bfloat16"),
        (((4, 5), (5, 7)), (4, 7), {}, "`left_is_transposed` and `right_is_transposed`"),
        (((4, 5), (5, 7), (1, 1)), (4, 7), FLAGS, "not two factors and one result"),
    ],
)
def test_wrong_calls_are_errors(
    plain_blas: Blas, shapes: Any, result: Any, flags: Any, message: str
):
    name = register_call(plain_blas)
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(result, jnp.float32))
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(jax.jit(partial(call, **flags))(*map(jnp.ones, shapes)))


def test_factors_of_another_format_are_an_error(plain_blas: Blas):
    name = register_call(plain_blas)
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((4, 7), jnp.float32))
    factors = jnp.ones((4, 5), jnp.int32), jnp.ones((5, 7), jnp.int32)
    with pytest.raises(Exception, match="must be matrices of float32 or of bfloat16"):
        jax.block_until_ready(jax.jit(partial(call, **FLAGS))(*factors))


def test_the_variable_leaves_products_to_xla():
    assert str(chosen_products({SWITCH: "off"})) == "XLA (`JAXPIPE_BLAS` is off)"


def test_another_value_of_the_variable_is_refused():
    with pytest.raises(ConfigError, match="`JAXPIPE_BLAS` must be auto or off, not 'mkl'"):
        chosen_products({SWITCH: "mkl"})


def test_without_a_compiler_xla_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    installed(monkeypatch, tmp_path)
    assert chosen_products({"CC": str(tmp_path / "none")}).reason == (
        "MKL is installed, but no C compiler, `cc`, that compiles its call"
    )
    products = chosen_products({"PATH": os.environ["PATH"]})
    assert (products.name, products.library) == ("MKL 1.2", tmp_path / "libmkl_rt.so.3")


def test_without_avx512_xla_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    installed(monkeypatch, tmp_path)
    monkeypatch.setattr(choice, "has_instructions", lambda name: name != "avx512f")
    assert chosen_products({}).reason == (
        "this processor has no AVX-512, without which MKL was slower"
    )


def test_a_package_without_its_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    installed(monkeypatch, tmp_path)
    (tmp_path / "libmkl_rt.so.3").unlink()
    assert chosen_products({}).reason == "the package `mkl` 1.2 has no libmkl_rt.so"


def test_a_library_that_cannot_be_loaded_leaves_products_to_xla(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    installed(monkeypatch, tmp_path)
    environment = {"PATH": os.environ["PATH"]}
    with caplog.at_level(logging.WARNING, product_lowering.__name__):
        products = use_products(environment)
    assert products.library is None
    assert "XLA computes all products of matrices, not MKL 1.2: " in caplog.text
    assert "jaxpipe_gemm" not in jax.jit(jnp.matmul).lower(*[jnp.ones((256, 256))] * 2).as_text()


def test_jax_without_the_known_rules_computes_with_xla(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(product_lowering, "former_rule", lambda: None)
    assert use_products({}).library is None


def test_without_a_blas_the_rule_of_jax_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    def register(*_: Any, **__: Any) -> None:
        raise AssertionError("a rule was replaced")

    monkeypatch.setattr(product_lowering.mlir, "register_lowering", register)
    assert use_products({SWITCH: "off"}).library is None


def test_the_call_of_a_loaded_library_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plain_blas: Blas
):
    installed(monkeypatch, tmp_path)
    monkeypatch.setattr(product_lowering, "load_mkl", lambda _: plain_blas)
    environment = {"PATH": os.environ["PATH"]}
    former = former_rule()
    assert former is not None
    factors = [jnp.ones((256, 256))] * 2
    try:
        assert str(use_products(environment)) == "MKL 1.2"
        assert "jaxpipe_gemm" in jax.jit(lambda a, b: a @ b).lower(*factors).as_text()
        assert str(use_products({SWITCH: "off"})) == "XLA (`JAXPIPE_BLAS` is off)"
        assert "jaxpipe_gemm" not in jax.jit(lambda a, b: a @ b).lower(*factors).as_text()
    finally:
        lower_products(former)
        registered.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a package `mkl` 1.2 be found, on a machine for which MKL is made, in a folder."""
    library = folder / "libmkl_rt.so.3"
    library.write_text("no library")

    class File:
        name = library.name

        def locate(self) -> Path:
            return library

    class Package:
        version = "1.2"
        files = (File(),)

    monkeypatch.setattr(choice, "distribution", lambda _: Package())
    monkeypatch.setattr(choice, "num_jax_gpus", lambda _: 0)
    monkeypatch.setattr(choice, "has_instructions", lambda _: True)
    monkeypatch.setattr(choice.sys, "platform", "linux")
    monkeypatch.setattr(choice.platform, "machine", lambda: "x86_64")
    assert chosen_products({"PATH": os.environ["PATH"]}) != Products(name="XLA")


CACHED = """
import os, sys
from contextlib import ExitStack
from pathlib import Path
from jaxpipe.runtime.process.compile_cache import use_compile_cache
use_compile_cache(os.environ)
import jax, jax.numpy as jnp
from jaxpipe.runtime.compile_count import counted_compiles
from tests.runtime.blas.conftest import lowered_by, blas_in

x = jnp.eye(128)
with ExitStack() as held:
    if sys.argv[1:]:
        held.enter_context(lowered_by(blas_in(Path(sys.argv[1]))))
    with counted_compiles() as count:
        compiled = jax.jit(lambda x: x @ x).lower(x).compile()
    print(count.num_hits, float(compiled(x).sum()))
"""


@pytest.mark.slow
def test_the_compile_cache_keeps_products_of_both_apart(plain_library: Path, tmp_path: Path):
    # Without the call, a process could not run an executable that has it.
    hits = []
    for words in ((plain_library,), (), (), (plain_library,)):
        done = subprocess.run(
            [sys.executable, "-c", CACHED, *map(str, words)],
            env=os.environ | variables_of_cache(tmp_path) | {"PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        num_hits, total = done.stdout.split()
        assert total == "128.0"
        hits.append(int(num_hits))
    assert hits == [0, 0, 1, 1]
