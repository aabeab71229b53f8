"""Pool of receive buffers: fresh memory costs more than the message that it receives.

The kernel zeroes each page when it is first written to, and reclaims it when it is freed: for a
message of 1 MiB that takes longer than the copy. So a buffer without references, neither by NumPy
arrays nor by jax arrays that alias it, is reused for the next message of its size.

Buffers of 1 MiB and more lie on large pages of their own, whatever the C library does: a message of
1 MiB then takes half as long, since an MPI that copies from process to process looks up each page.
"""

import mmap
from collections import defaultdict
from typing import Any

import numpy as np

from jaxpipe.collective.codec.aligned import aligned_empty

_SMALLEST_BYTES = 2**16
_LARGE_PAGE_BYTES = 2**21
_SMALLEST_ON_LARGE_PAGES_BYTES = 2**20


class BufferPool:
    """Lends buffers, and keeps at most `max_idle_bytes` of returned ones.

    Any thread may take a buffer, or drop the last reference to it.

    >>> pool = BufferPool()
    >>> first = pool.take(100_000)
    >>> address = first.ctypes.data
    >>> del first
    >>> pool.take(100_000).ctypes.data == address
    True
    """

    def __init__(self, *, max_idle_bytes: int = 2**28) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._idle: defaultdict[int, list[np.ndarray]] = defaultdict(list)

    def take(self, num_bytes: int) -> np.ndarray:
        """Return an uninitialised uint8 array of shape (num_bytes,) in memory that jax aliases."""
        # Small buffers come from the allocator's own free lists, without page faults.
        if num_bytes < _SMALLEST_BYTES:
            return aligned_empty((num_bytes,), np.uint8)
        try:
            memory = self._idle[num_bytes].pop()
        except IndexError:
            memory = _fresh(num_bytes)
        # Through the array interface, so that all views share the loan as their base.
        return np.asarray(_Loan(self, memory))

    def give_back(self, memory: np.ndarray) -> None:
        """Keep unreferenced memory for the next message, or free it.

        Takes no lock: the garbage collector may call this at any point, even inside of `take`.
        """
        idle_bytes = sum(size * len(idle) for size, idle in tuple(self._idle.items()))
        if idle_bytes + memory.size <= self._max_idle_bytes:
            self._idle[memory.size].append(memory)


def _fresh(num_bytes: int) -> np.ndarray:
    """Return uninitialised memory, on large pages if it is large and the system has such pages."""
    if num_bytes < _SMALLEST_ON_LARGE_PAGES_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_empty((num_bytes,), np.uint8)
    num_pages = -(-num_bytes // _LARGE_PAGE_BYTES)
    area = mmap.mmap(
        -1, (num_pages + 1) * _LARGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    area.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(area, np.uint8)
    start = -memory.ctypes.data % _LARGE_PAGE_BYTES
    return memory[start : start + num_bytes]


class _Loan:
    """The base object of all arrays over one buffer; its deletion returns the buffer."""

    def __init__(self, pool: BufferPool, memory: np.ndarray) -> None:
        self._pool, self._memory = pool, memory

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._pool.give_back(self._memory)
