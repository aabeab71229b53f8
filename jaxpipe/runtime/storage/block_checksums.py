"""Checksums of the blocks of a file, so that a part of it can be verified without the rest.

::

    train.npy          │ block 0 │ block 1 │ ... │ block n │      64 KiB each, the last one shorter
    train-blocks.npy     xxh3-64   xxh3-64   ...   xxh3-64       8 bytes each
"""

from io import BytesIO
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import UInt64

from jaxpipe.foreign_file import open_regular
from jaxpipe.runtime.storage.atomic_write import write_durably
from jaxpipe.runtime.storage.checksum import checksum_bytes

BLOCK_BYTES = 2**16
"""A request of an object store takes about as long for 64 KiB as for one byte."""


def blocks_file(file: str) -> str:
    """Return the name of the file with the checksums of the blocks of a file.

    >>> blocks_file("train.npy")
    'train-blocks.npy'
    """
    return f"{file.removesuffix('.npy')}-blocks.npy"


def checksum_block(data: bytes | memoryview) -> int:
    """Return the checksum of one block."""
    return xxhash.xxh3_64_intdigest(data)


def write_block_checksums(path: Path) -> str:
    """Write the checksums of the blocks of a file next to it, and return their own checksum."""
    with open_regular(path) as file:
        checksums = [checksum_block(data) for data in iter(lambda: file.read(BLOCK_BYTES), b"")]
    content = BytesIO()
    np.save(content, np.array(checksums, np.uint64), allow_pickle=False)
    write_durably(path.with_name(blocks_file(path.name)), content.getvalue())
    return checksum_bytes(content.getvalue())


def num_blocks(num_bytes: int) -> int:
    """Return the number of blocks of a file."""
    return -(-num_bytes // BLOCK_BYTES)


def read_block_checksums(content: bytes, *, checksum: str) -> UInt64[np.ndarray, " blocks"]:
    """Return the checksums that `write_block_checksums` wrote.

    Raises:
        ValueError: they do not match their own checksum, or are no such array.
    """
    if checksum_bytes(content) != checksum:
        raise ValueError("`checksum` does not match the content")
    checksums = np.load(BytesIO(content), allow_pickle=False)
    if checksums.dtype != np.uint64 or checksums.ndim != 1:
        raise ValueError(
            f"`dtype` and `shape` are {checksums.dtype}{list(checksums.shape)}, not those "
            "of checksums of blocks"
        )
    return checksums
