"""How the C library of a rank gets and keeps memory; only that of GNU has such settings."""

import ctypes
from collections.abc import Mapping

from jaxpipe.topo.this_machine import num_jax_gpus

TUNABLES = "GLIBC_TUNABLES"
MEMORY_SETTINGS = {
    TUNABLES: "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296"
    ":glibc.malloc.trim_threshold=1099511627776:glibc.malloc.arena_max=1"
}
"""Makes the C library of a process that is started use large pages, and reuse freed memory.

Large pages (measured): of three pairs of alternating runs on two cores, two had 5 to 8 % more
tokens/s with them, the third less than that. Reuse (measured): by default, blocks above 32 MiB are
returned to the system when they are freed, and mapped again page by page. A jitted call that
returns 160 MiB in four arrays took 22 ms with the default and 11 ms without; the processor seconds
of a GPipe step went from 10.7 to 9.9 in one pair of runs. One arena (measured): a further arena, as
each thread of XLA has, cannot hold a block above 64 MiB, so the 158 MiB in which the backward of
four layers of 512 computes were mapped at each call. Forward and backward took 0.96 s with an
arena for each thread and 0.91 s with one for all (medians over four processes each, in turn, of
the fastest of 14 calls on one core). The price: the memory of a rank never shrinks below its peak,
which was 5 % higher with one arena. These are settings of ranks alone: where threads allocate many
small blocks, as those of a tokenizer do, one arena makes them wait for each other, and preparing
20 MB of records took 11.6 s in place of 3.5 s (measured).
"""

_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1  # as malloc.h numbers them
_LARGEST = 2**31 - 1
_MANY_ARENAS = 1024


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Apply `MEMORY_SETTINGS`, but for large pages, to this process; return whether it has any.

    For a rank that no launcher of ours has started. It comes before jax, whose threads would have
    arenas of their own, and do have them beside a GPU: with one arena for all, the threads that
    compile for it wait for each other, and a GPT-XL took over 80 s to compile in place of 28
    (measured, on 16 cores beside an H200). A process that was started with tunables keeps those.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or TUNABLES in environment:
        return False
    arenas = 1 if num_jax_gpus(environment) == 0 else _MANY_ARENAS
    settings = ((_ARENA_MAX, arenas), (_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _LARGEST))
    results = [mallopt(ctypes.c_int(name), ctypes.c_int(value)) for name, value in settings]
    return all(results)


def allow_arenas() -> None:
    """Let each thread have an arena again, also where `MEMORY_SETTINGS` have allowed one.

    For a rank whose threads allocate many small blocks. It comes before they do: the C library
    keeps the number that it finds when the first thread asks.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(ctypes.c_int(_ARENA_MAX), ctypes.c_int(_MANY_ARENAS))
