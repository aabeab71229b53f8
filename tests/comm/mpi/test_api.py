"""The names of MPICH's shared memory go once all ranks have mapped it, and no others do."""

from pathlib import Path

import pytest

from jaxpipe.comm.mpi.api import unlink_shared_memory

LINE = "7f00-7f01 rw-s 00000000 00:1a 77  {path}\n"


@pytest.fixture
def names() -> list[Path]:
    return [Path("/dev/shm") / name for name in ("mpich_shm_0test_0", "other_shm_0test_0")]


def test_only_names_of_mpich_go(tmp_path: Path, names: list[Path]) -> None:
    maps = tmp_path / "maps"
    maps.write_text("".join(LINE.format(path=path) for path in names) + "7f00-7f01 r--p 0 0 0\n")
    try:
        for path in names:
            path.touch()
        unlink_shared_memory(maps)
        unlink_shared_memory(maps)
        assert [path.exists() for path in names] == [False, True]
    finally:
        for path in names:
            path.unlink(missing_ok=True)


def test_systems_without_maps_are_left_alone(tmp_path: Path) -> None:
    unlink_shared_memory(tmp_path / "none")
