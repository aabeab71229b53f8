"""What all tests share: types checked at run time, one cache of what XLA compiled, no timing.

They may run in several processes at once (`pytest --numprocesses 2 --dist loadscope`): those of a
file in one process, and all that make network namespaces in one too.
"""

import compileall
import ctypes
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from xdist.scheduler import LoadScopeScheduling

from jaxpipe.runtime.process.compile_cache import (
    LEAST_SECONDS,
    publish,
    use_compile_cache,
    variables_of_cache,
)
from jaxpipe.runtime.process.garbage_collection import collect_rarely
from jaxpipe.runtime.process.quick_compiles import quick_flags
from tests import MPI_FOLDER

_PROJECT = Path(__file__).resolve().parent.parent
_CHECKED = ("jaxpipe/models", "jaxpipe/runtime", "jaxpipe/comm", "jaxpipe/collective/codec")


def _modules_with_shapes() -> list[str]:
    """Return the modules whose annotations have shapes: checking the others as well costs much.

    With all modules of these packages, a short training in this process took twice the time.
    """
    files = (file for folder in _CHECKED for file in (_PROJECT / folder).rglob("*.py"))
    return sorted(
        ".".join(file.relative_to(_PROJECT).with_suffix("").parts)
        for file in files
        if "from jaxtyping import" in file.read_text(encoding="utf-8")
    )


install_import_hook(_modules_with_shapes(), typechecker="beartype.beartype")

# A tree has one verdict: the examples of a law follow from its code. `--hypothesis-profile random`
# draws others each time, as `make deep` does.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("repeatable")

_SOURCES = ("jaxpipe", "models", "topo", "experiments", "tests")

_MAPPINGS = Path("/proc/self/maps")
_MANY_MAPPINGS = 20_000
"""Linux gives a process 65,530, and a compiled function takes 13 or more of them (measured)."""

_MUCH_MEMORY_BYTES = 1_500_000_000
"""What a process holds after a file before it drops what was compiled.

Without the limit, one process that ran half of tests/runtime grew to 4.1 GB (measured).
"""

_KEPT_IF_COMPILED_FOR_S = 0.1
"""What the process of tests has compiled in less time is not written to the cache.

Writing was half of the time that it compiled in (measured, with functions of stages). Ranks keep
all of theirs, since those of later tests compile the same.
"""

_CACHE = pytest.StashKey[TemporaryDirectory[str]]()
_MPI = pytest.StashKey[TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Let ranks, replicas and tests that compile the same stage do it once.

    Processes that run a part of the tests inherit the environment of the one that starts them. Each
    process has a view of the cache: what a killed rank wrote half, no other one reads.
    """
    collect_rarely()
    # A shell ignores SIGINT in background jobs, nohup SIGHUP, and children inherit that: tests of
    # signals would wait for a job that never receives one.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if hasattr(config, "workerinput"):
        _use_compile_cache()
        return
    # Where Python does not write bytecode (PYTHONDONTWRITEBYTECODE), each of hundreds of processes
    # would compile the sources again: 0.4 of the 1.8 s that the imports of a rank take (measured).
    for folder in _SOURCES:
        compileall.compile_dir(_PROJECT / folder, quiet=2)
    # Each operation of a lowered function would name the ten lines of Python that led to it: of the
    # processor time of a file that compiles models, 7 % (measured).
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
    # In front: of two values of a flag, XLA takes the later one.
    os.environ["XLA_FLAGS"] = quick_flags(os.environ.get("XLA_FLAGS", ""))
    config.stash[_CACHE] = TemporaryDirectory()
    # The path of a socket has at most 107 bytes, and MPI appends about 40.
    config.stash[_MPI] = TemporaryDirectory(prefix="jp-mpi-", ignore_cleanup_errors=True)
    os.environ[MPI_FOLDER] = config.stash[_MPI].name
    os.environ.update(variables_of_cache(Path(config.stash[_CACHE].name) / "compiled"))
    # Speeds, profiles and searched plans that the user's own runs have kept would stand in for
    # those that a test asks for.
    os.environ["XDG_CACHE_HOME"] = str(Path(config.stash[_CACHE].name) / "user")
    _use_compile_cache()


def _use_compile_cache() -> None:
    """Let jax, which is not imported yet, share a cache of what takes long to compile."""
    use_compile_cache(os.environ)
    os.environ[LEAST_SECONDS] = str(_KEPT_IF_COMPILED_FOR_S)


class _ByFile(LoadScopeScheduling):
    """Gives all tests of a file to one process; those that make network namespaces are as one file.

    What a file computes for several of its tests is then computed once.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "namespaces" if "emulat" in file else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the examples of models as slow: they cannot carry a mark, and each compiles a model."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.nodeid.startswith("models/"):
            item.add_marker(pytest.mark.slow)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Say which tests one process is to run; the marks of `loadgroup` are lost on some pytests."""
    return _ByFile(config, log)


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of all later collections of garbage."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def published() -> Iterator[None]:
    """Let the other process, and the ranks of later tests, read what a file's tests compiled."""
    yield
    publish(os.environ)


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """Drop what was compiled before memory runs out, or its mappings: XLA ends with signal 11."""
    yield
    if not _MAPPINGS.exists():
        return
    many = _MAPPINGS.read_bytes().count(b"\n") >= _MANY_MAPPINGS
    if not many and psutil.Process().memory_info().rss < _MUCH_MEMORY_BYTES:
        return
    import jax

    from tests.runtime.compiled_once import forget

    forget()
    jax.clear_caches()
    gc.collect()
    # The allocator would keep half of it (measured).
    ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="module")
def compiled_once() -> Iterator[None]:
    """Let ranks that are threads take what any test of this process has compiled."""
    from jaxpipe.runtime.step import worker
    from tests.runtime.compiled_once import compile_stage_once

    with patch.object(worker, "compile_stage", compile_stage_once):
        yield


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small dataset."""
    from tests.runtime.training import write_dataset

    return write_dataset(tmp_path_factory.mktemp("data"))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache, and what killed MPI jobs have left."""
    for folder in (_CACHE, _MPI):
        if folder in config.stash:
            config.stash[folder].cleanup()
