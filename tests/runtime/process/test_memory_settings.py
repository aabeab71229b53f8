"""Freed memory is used again, in all threads, also by a process that no launcher has started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.runtime.process.memory_settings import (
    MEMORY_SETTINGS,
    TUNABLES,
    keep_freed_memory,
)

# Faults of pages when a thread, as XLA's do, fills 96 MiB that it has had before.
COUNT_FAULTS = """
import ctypes, os, resource, threading
from jaxpipe.runtime.process.memory_settings import keep_freed_memory
keep_freed_memory(os.environ)
library, size = ctypes.CDLL(None), 96 * 2**20
library.malloc.restype = ctypes.c_void_p
def fill():
    block = library.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    library.free(ctypes.c_void_p(block))
def twice():
    fill()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    fill()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=twice)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of the GNU C library")
@pytest.mark.parametrize("settings", [{}, MEMORY_SETTINGS], ids=["not launched", "launched"])
def test_freed_memory_is_used_again(settings: dict[str, str]):
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES}
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS],
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(done.stdout) < 16  # of 24,576 pages, or of 48 large ones


def test_tunables_of_the_user_are_kept():
    assert not keep_freed_memory({TUNABLES: "glibc.malloc.arena_max=4"})


# The arenas of the C library after four threads have allocated at the same time.
COUNT_ARENAS = """
import ctypes, sys, threading
from jaxpipe.runtime.process import memory_settings
if sys.argv[1] == "allowed":
    memory_settings.allow_arenas()
elif sys.argv[1].startswith("not launched"):
    memory_settings.num_jax_gpus = lambda _: int(sys.argv[1][-1])
    assert memory_settings.keep_freed_memory({})
library, meeting = ctypes.CDLL(None), threading.Barrier(4)
library.malloc.restype = ctypes.c_void_p
def allocate():
    meeting.wait(60)
    library.malloc(ctypes.c_size_t(100_000))
    meeting.wait(60)
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
library.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fopen(sys.argv[2].encode(), b"w"))
library.malloc_info(0, file)
library.fclose(file)
print(open(sys.argv[2]).read().count("<heap "))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of the GNU C library")
@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("one", False),
        ("allowed", True),
        ("not launched, GPUs: 0", False),
        ("not launched, GPUs: 1", True),
    ],
)
def test_a_rank_that_compiles_in_threads_has_arenas_for_them(
    kind: str, allowed: bool, tmp_path: Path
):
    settings = {} if kind.startswith("not launched") else MEMORY_SETTINGS
    environment = {name: value for name, value in os.environ.items() if name != TUNABLES}
    done = subprocess.run(
        [sys.executable, "-c", COUNT_ARENAS, kind, str(tmp_path / "info")],
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (int(done.stdout) > 1) == allowed
