"""An array in object storage, of which only the parts that are read are fetched, and verified.

::

    array[1000:1128] ──► blocks 3 and 4 ──► one request, two checksums ──► kept for the next reads
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError as OverdueError
from functools import partial
from io import BytesIO
from threading import RLock
from typing import TypeVar

import numpy as np
from jaxtyping import UInt64

from jaxpipe.errors import DataError
from jaxpipe.runtime.storage.block_checksums import BLOCK_BYTES, checksum_block, num_blocks
from jaxpipe.runtime.storage.object_folder import ANSWERS_WITHIN_S, ObjectFolder, within

_Result = TypeVar("_Result")

_KEPT_BYTES = 2**26
_HEADER_BYTES = 2**12
"""More than the header of a .npy file of one dtype."""


class StoredArray:
    """A .npy file in object storage; its rows are read like those of a NumPy array.

    It keeps the blocks that were read last, 64 MiB of them.
    """

    def __init__(
        self, folder: ObjectFolder, file: str, checksums: UInt64[np.ndarray, " blocks"]
    ) -> None:
        """Read the header.

        Raises:
            DataError: the store does not answer, or the file is no array or not as long as the
                checksums of its blocks say.
        """
        self._folder, self._file, self._checksums = folder, file, checksums
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._lock = RLock()  # ranks may be threads of one process
        self.num_bytes_read = 0
        """The bytes that were fetched so far."""
        self._num_bytes = _answered(folder, file, partial(folder.size, file))
        if num_blocks(self._num_bytes) != len(checksums):
            raise self._broken(f"it has {self._num_bytes:,} bytes, {len(checksums)} blocks")
        header = BytesIO(self._bytes(0, min(_HEADER_BYTES, self._num_bytes)))
        try:
            np.lib.format.read_magic(header)
            self.shape, order, self.dtype = np.lib.format.read_array_header_1_0(header)
        except ValueError as error:
            raise self._broken(str(error)) from None
        self._begin = header.tell()
        self._row_bytes = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        if order or not self.shape or self._range(0, len(self))[1] != self._num_bytes:
            raise self._broken("it is not as long as its header says")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | list[int]) -> np.ndarray:
        """Return consecutive rows, or rows by their numbers, all fetched at once.

        Raises:
            DataError: the store does not answer, or a block is not what was prepared.
        """
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            assert step == 1, rows
            return self._rows(start, max(start, stop))
        self.fetch((row, row + 1) for row in rows)
        rows_read = [self._rows(row, row + 1) for row in rows]
        return np.concatenate(rows_read) if rows_read else self._rows(0, 0)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole array, as `numpy.asarray` asks for it: for small ones."""
        del copy  # what is read is always a copy
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def fetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Fetch what is missing of spans of rows, at once; reads of them then need no request.

        Raises:
            DataError: the store does not answer, or a block is not what was prepared.
        """
        with self._lock:
            self._fetch(
                block
                for first, last in spans
                for block in _blocks_of(*self._range(first, min(last, len(self))))
            )

    def _rows(self, start: int, stop: int) -> np.ndarray:
        data = self._bytes(*self._range(start, stop))
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def _range(self, start: int, stop: int) -> tuple[int, int]:
        return self._begin + start * self._row_bytes, self._begin + stop * self._row_bytes

    def _bytes(self, begin: int, end: int) -> bytes:
        blocks = _blocks_of(begin, end)
        with self._lock:
            self._fetch(blocks)
            joined = b"".join(self._blocks[block] for block in blocks)
        return joined[begin - blocks.start * BLOCK_BYTES :][: end - begin]

    def _fetch(self, blocks: Iterable[int]) -> None:
        needed = sorted(set(blocks))
        runs = _runs([block for block in needed if block not in self._blocks])
        ranges = [
            (first * BLOCK_BYTES, min(last * BLOCK_BYTES, self._num_bytes)) for first, last in runs
        ]
        if ranges:
            contents = _answered(
                self._folder,
                self._file,
                partial(self._folder.read_ranges, self._file, ranges),
            )
            for (first, last), content in zip(runs, contents, strict=True):
                self._keep(range(first, last), memoryview(content))
        for block in needed:
            self._blocks.move_to_end(block)
        while len(self._blocks) > max(_KEPT_BYTES // BLOCK_BYTES, len(needed)):
            self._blocks.popitem(last=False)

    def _keep(self, blocks: range, content: memoryview) -> None:
        self.num_bytes_read += len(content)
        for position, block in enumerate(blocks):
            data = content[position * BLOCK_BYTES : (position + 1) * BLOCK_BYTES]
            if checksum_block(data) != int(self._checksums[block]):
                raise self._broken(f"block {block} of 64 KiB does not match its checksum")
            self._blocks[block] = bytes(data)

    def _broken(self, problem: str) -> DataError:
        return DataError(
            f"`{self._folder.setting}` must hold an intact dataset; {self._folder}/{self._file} is "
            f"not: {problem}; upload it again from where `jaxpipe data prepare` wrote it"
        )


def stored_content(folder: ObjectFolder, file: str) -> bytes:
    """Return a whole file.

    Raises:
        DataError: it is missing, or the store does not answer.
    """
    return _answered(folder, file, partial(folder.read, file))


def _answered(folder: ObjectFolder, file: str, work: Callable[[], _Result]) -> _Result:
    """Return what a request returns."""
    try:
        return within(work, timeout_s=ANSWERS_WITHIN_S)
    except OverdueError:
        problem = f"no answer after {ANSWERS_WITHIN_S:g} s"
    except OSError as error:
        problem = error.strerror or str(error)
    raise DataError(
        f"`{folder.setting}` must be readable from this machine; {folder}/{file} is not: "
        f"{problem:.400}; check the URL, the credentials in the environment and the endpoint"
    ) from None


def _blocks_of(begin: int, end: int) -> range:
    """Return the blocks of a range of bytes.

    >>> _blocks_of(65_530, 65_540), _blocks_of(65_536, 65_536)
    (range(0, 2), range(1, 1))
    """
    return range(begin // BLOCK_BYTES, num_blocks(end) if end > begin else begin // BLOCK_BYTES)


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending blocks as runs, each from the first to the one after the last.

    >>> _runs([2, 3, 4, 9])
    [(2, 5), (9, 10)]
    """
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return runs
