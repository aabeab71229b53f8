"""Freed memory is used again, in all threads, also by a process that no launcher has started."""

import os
import subprocess
import sys

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
