"""Arrays in object storage: equal to those on disk, fetched in parts, and verified."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.storage import stored_array
from jaxpipe.runtime.storage.block_checksums import (
    BLOCK_BYTES,
    blocks_file,
    checksum_block,
    read_block_checksums,
    write_block_checksums,
)
from jaxpipe.runtime.storage.object_folder import ObjectFolder, open_object_folder
from jaxpipe.runtime.storage.stored_array import StoredArray

FILE = "train.npy"
LONG = np.arange(200_000, dtype=np.uint32)
"""13 blocks."""


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> Iterator[ObjectFolder]:
    found = open_object_folder(f"memory://{request.node.name}", setting="data.folder")
    yield found
    found.remove(found.sizes())


def stored(folder: ObjectFolder, array: np.ndarray, scratch: Path) -> StoredArray:
    np.save(scratch / FILE, array)
    checksum = write_block_checksums(scratch / FILE)
    folder.put(FILE, (scratch / FILE).read_bytes())
    blocks = (scratch / blocks_file(FILE)).read_bytes()
    return StoredArray(folder, FILE, read_block_checksums(blocks, checksum=checksum))


@given(
    data=st.data(),
    rows=st.integers(1, 60_000),
    width=st.sampled_from([(), (3,), (5, 2)]),
    dtype=st.sampled_from(["uint8", "uint16", "uint32"]),
)
def test_rows_are_those_of_the_array(
    data: st.DataObject,
    rows: int,
    width: tuple[int, ...],
    dtype: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    array = np.arange(rows * int(np.prod(width, dtype=int)), dtype=np.uint64).astype(dtype)
    array = array.reshape(rows, *width)
    folder = open_object_folder("memory://rows", setting="data.folder")
    found = stored(folder, array, tmp_path_factory.mktemp("rows"))
    assert (found.shape, found.dtype, found.ndim, found.size, len(found)) == (
        (array.shape, array.dtype, array.ndim, array.size, len(array))
    )
    start, stop = (data.draw(st.integers(0, rows + 5)) for _ in range(2))
    assert np.array_equal(found[start:stop], array[start:stop])
    assert np.array_equal(np.asarray(found), array)
    chosen = data.draw(st.lists(st.integers(0, rows - 1), max_size=5))
    assert np.array_equal(found[chosen], array[chosen])


def test_a_part_is_fetched_once(folder: ObjectFolder, tmp_path: Path) -> None:
    found = stored(folder, LONG, tmp_path)
    of_header = found.num_bytes_read
    assert of_header == BLOCK_BYTES
    assert found[100_000:100_016].tolist() == LONG[100_000:100_016].tolist()
    assert found[100_010:100_100].tolist() == LONG[100_010:100_100].tolist()
    assert found.num_bytes_read == of_header + BLOCK_BYTES


def test_spans_are_fetched_in_one_call(folder: ObjectFolder, tmp_path: Path) -> None:
    found = stored(folder, LONG, tmp_path)
    calls: list[int] = []
    read_ranges = ObjectFolder.read_ranges

    def counted(self: ObjectFolder, file: str, ranges: list[tuple[int, int]]) -> list[bytes]:
        calls.append(len(ranges))
        return read_ranges(self, file, ranges)

    with patch.object(ObjectFolder, "read_ranges", counted):
        found.fetch([(50_000, 50_010), (199_990, 200_300), (0, 0)])
        assert [found[50_000:50_002].tolist(), found[199_999:].tolist()] == [
            [50_000, 50_001],
            [199_999],
        ]
    assert calls == [2]


def test_old_blocks_make_room(folder: ObjectFolder, tmp_path: Path) -> None:
    with patch.object(stored_array, "_KEPT_BYTES", 2 * BLOCK_BYTES):
        found = stored(folder, LONG, tmp_path)
        for start in (20_000, 40_000, 20_000, 60_000, 20_000):  # blocks 1, 2, 1, 3, 1
            assert found[start : start + 1][0] == start
        assert found.num_bytes_read == 4 * BLOCK_BYTES
        # More than are kept are needed at once.
        assert np.array_equal(found[:], LONG)


def test_a_changed_block_is_named_and_others_are_read(folder: ObjectFolder, tmp_path: Path) -> None:
    found = stored(folder, LONG, tmp_path)
    content = bytearray(folder.read(FILE))
    content[5 * BLOCK_BYTES + 7] ^= 1
    folder.put(FILE, bytes(content))
    assert found[:10].tolist() == list(range(10))
    with pytest.raises(DataError, match=r"`data.folder` must hold .*train.npy is not: block 5 "):
        found[:]


@pytest.mark.parametrize("kept", [0, 100, 3 * BLOCK_BYTES])
def test_a_file_that_was_cut_is_refused(folder: ObjectFolder, tmp_path: Path, kept: int) -> None:
    stored(folder, LONG, tmp_path)
    folder.put(FILE, folder.read(FILE)[:kept])
    content = (tmp_path / blocks_file(FILE)).read_bytes()
    checksums = read_block_checksums(content, checksum=write_block_checksums(tmp_path / FILE))
    with pytest.raises(DataError, match=r"train.npy is not: it has [\d,]+ bytes, 13 blocks"):
        StoredArray(folder, FILE, checksums)


def test_one_number_is_no_array(folder: ObjectFolder, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train.npy is not: it is not as long as its header says"):
        stored(folder, np.array(3, np.uint8), tmp_path)


def test_a_file_that_is_no_array_is_refused(folder: ObjectFolder) -> None:
    folder.put(FILE, b"no array")
    with pytest.raises(DataError, match=r"train.npy is not: "):
        StoredArray(folder, FILE, np.array([checksum_block(b"no array")], np.uint64))


def test_a_missing_file_is_named(folder: ObjectFolder) -> None:
    with pytest.raises(DataError, match=r"`data.folder` must be readable .*train.npy is not: "):
        StoredArray(folder, FILE, np.zeros(1, np.uint64))


def test_a_store_that_does_not_answer_is_given_up(folder: ObjectFolder, tmp_path: Path) -> None:
    found = stored(folder, LONG, tmp_path)

    def late(*_: object, **__: object) -> None:
        raise TimeoutError

    with (
        patch.object(stored_array, "within", late),
        pytest.raises(DataError, match="no answer after 30 s"),
    ):
        found[100_000:100_001]
