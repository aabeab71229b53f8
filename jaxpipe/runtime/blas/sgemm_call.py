"""The custom call of XLA that computes a product with a BLAS: compiled on first use, and kept.

::

    sgemm.c ── C compiler ──► ~/.cache/jaxpipe/calls/sgemm-<hash>.so ──► jax.ffi
                                                  ▲
                        cblas_sgemm of the BLAS ──┘  a pointer to the function
"""

import ctypes
import hashlib
import os
import secrets
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

import jax

from jaxpipe.foreign_file import lines_of
from jaxpipe.runtime.process.user_cache import check_private, processor

_SOURCE: Final = Path(__file__).with_name("sgemm.c")
_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread")
_TIMEOUT_S = 60.0
_SEQUENTIAL = 1  # as mkl_types.h numbers layers of threads


def sgemm_of_mkl(library: Path) -> int:
    """Load MKL, set it to one thread in each call, and return the address of `cblas_sgemm`.

    Raises:
        OSError: the library cannot be loaded, or lacks the function.
    """
    mkl = ctypes.CDLL(str(library))
    try:
        # Before any other function of MKL. Threads are those of XLA: the call divides the product.
        mkl.MKL_Set_Threading_Layer(_SEQUENTIAL)
        mkl.MKL_Set_Num_Threads(1)  # where another package of this process has chosen the layer
        function = mkl.cblas_sgemm_64
    except AttributeError as error:
        raise OSError(f"{library} is too old: {error}") from error
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None, library
    return address


def register_sgemm(sgemm: int, compiler: str, *, folder: Path) -> str:
    """Register the custom call for the `cblas_sgemm` at an address, and return its name.

    The integers of the BLAS have 64 bits. The call is compiled in `folder`, unless it is there. The
    name has the hash of the source: an executable in a cache that calls another version is none
    that this process asks for.

    Raises:
        OSError: the call cannot be compiled or loaded, or others may write to the folder.
    """
    name = f"jaxpipe_sgemm_{hashlib.sha256(_source().encode()).hexdigest()[:8]}"
    call = ctypes.CDLL(str(compiled_call(compiler, folder)))
    call.jaxpipe_sgemm_use.argtypes = (ctypes.c_void_p,)
    call.jaxpipe_sgemm_use.restype = None
    call.jaxpipe_sgemm_use(sgemm)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(call.jaxpipe_sgemm), platform="cpu")
    return name


def compiled_call(compiler: str, folder: Path) -> Path:
    """Return the compiled call in a folder; compile it if it is not there.

    Raises:
        OSError: the compiler fails, or others may write to the folder.
    """
    # A home may be shared by machines of other processors.
    facts = (_source(), version("jaxlib"), compiler, processor())
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(folder)
    path = folder / f"sgemm-{key}.so"
    if not path.is_file():
        # Ranks that start together compile a file each, and the last one stays.
        draft = folder / f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            _compile(compiler, draft)
            draft.chmod(0o700)  # whatever the umask
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    check_private(path)
    return path


def _source() -> str:
    return _SOURCE.read_text()


def _compile(compiler: str, path: Path) -> None:
    command = (compiler, *_FLAGS, "-I", jax.ffi.include_dir(), str(_SOURCE), "-o", str(path))
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
        raise OSError(f"{compiler} cannot compile {_SOURCE.name}: {first:.200}")
