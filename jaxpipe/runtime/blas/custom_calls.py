"""The custom calls of XLA that compute with a BLAS: compiled on first use, and kept.

::

    gemm.c, attention.c ── C compiler ──► ~/.cache/jaxpipe/calls/gemm-<hash>.so ──► jax.ffi
                                                              ▲
                                       products of the BLAS ──┘  pointers to its functions
"""

import ctypes
import hashlib
import os
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import jax

from jaxpipe.attention_calls import AttentionCalls
from jaxpipe.foreign_file import lines_of
from jaxpipe.runtime.process.user_cache import check_private, processor

_FOLDER: Final = Path(__file__).parent
_HEADER: Final = "call_of_xla.h"
_FLAGS = (
    *("-std=c11", "-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread"),
    # Vectors are passed to functions of the same file alone, whatever the registers.
    *("-Wall", "-Wextra", "-Werror", "-Wno-psabi"),
)
_TIMEOUT_S = 60.0
_SEQUENTIAL = 1  # as mkl_types.h numbers layers of threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Blas:
    """Addresses of the products of a BLAS; its integers have 64 bits.

    Args:
        float32: `cblas_sgemm`.
        bfloat16: `cblas_gemm_bf16bf16f32`, of factors in bfloat16 with the result in float32.
    """

    float32: int
    bfloat16: int


def load_mkl(library: Path) -> Blas:
    """Load MKL, set it to one thread in each call, and return its products.

    Raises:
        OSError: the library cannot be loaded, or lacks a function.
    """
    mkl = ctypes.CDLL(str(library))
    try:
        # Before any other function of MKL. Threads are those of XLA: the call divides the product.
        mkl.MKL_Set_Threading_Layer(_SEQUENTIAL)
        mkl.MKL_Set_Num_Threads(1)  # where another package of this process has chosen the layer
        return Blas(
            float32=address_of(mkl.cblas_sgemm_64),
            # Held to instructions without bfloat16, 0.8 to 1.1 of the speed of float32 (measured).
            bfloat16=address_of(mkl.cblas_gemm_bf16bf16f32_64),
        )
    except AttributeError as error:
        raise OSError(f"{library} is too old: {error}") from error


def address_of(function: Any) -> int:
    """Return the address of a function of a loaded library."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, function
    return address


def register_gemm(blas: Blas, compiler: str, *, folder: Path) -> str:
    """Register the custom call for the products of a BLAS, and return its name.

    The call is compiled in `folder`, unless it is there. The name has the hash of the source: an
    executable in a cache that calls another version is none that this process asks for.

    Raises:
        OSError: the call cannot be compiled or loaded, or others may write to the folder.
    """
    products = (blas.float32, blas.bfloat16)
    (name,) = _register("gemm", ("jaxpipe_gemm",), products, compiler, folder=folder)
    return name


def register_attention(blas: Blas, compiler: str, *, folder: Path) -> AttentionCalls:
    """Register the calls of attention, forward and backward, as `register_gemm` does.

    Raises:
        OSError: the calls cannot be compiled or loaded, or others may write to the folder.
    """
    functions = ("jaxpipe_attention", "jaxpipe_attention_backward")
    return AttentionCalls(
        *_register("attention", functions, (blas.float32,), compiler, folder=folder)
    )


def _register(
    source: str, functions: tuple[str, ...], products: Sequence[int], compiler: str, *, folder: Path
) -> tuple[str, ...]:
    """Register functions of a source file with addresses of products; return their names."""
    library = ctypes.CDLL(str(compiled_calls(source, compiler, folder)))
    use = library[f"jaxpipe_{source}_use"]
    use.argtypes, use.restype = (ctypes.c_void_p,) * len(products), None
    use(*products)
    digest = hashlib.sha256(_text(source).encode()).hexdigest()[:8]
    names = tuple(f"{function}_{digest}" for function in functions)
    for name, function in zip(names, functions, strict=True):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library[function]), platform="cpu")
    return names


def compiled_calls(source: str, compiler: str, folder: Path) -> Path:
    """Return the compiled calls of a source file, by its stem; compile them if they are not there.

    Raises:
        OSError: the compiler fails, or others may write to the folder.
    """
    # A home may be shared by machines of other processors.
    facts = (_text(source), version("jaxlib"), compiler, processor(), *_FLAGS)
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(folder)
    path = folder / f"{source}-{key}.so"
    if not path.is_file():
        # Ranks that start together compile a file each, and the last one stays.
        draft = folder / f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            _compile(source, compiler, draft)
            draft.chmod(0o700)  # whatever the umask
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    check_private(path)
    return path


def _text(source: str) -> str:
    return "".join((_FOLDER / name).read_text() for name in (_HEADER, f"{source}.c"))


def _compile(source: str, compiler: str, path: Path) -> None:
    file = _FOLDER / f"{source}.c"
    folders = ("-I", jax.ffi.include_dir(), "-I", str(_FOLDER))
    command = (compiler, *_FLAGS, *folders, str(file), "-o", str(path), "-lm")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{compiler} took more than {_TIMEOUT_S:g} s") from error
    if done.returncode:
        lines = lines_of(done.stderr.strip()) or [f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise OSError(f"{compiler} cannot compile {file.name}: {first:.200}")
