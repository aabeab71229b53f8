"""Hosts without the dataset get that of rank 0's host, and no other."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import DataError
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.data import Source, open_dataset, prepare
from jaxpipe.runtime.data.dataset.bring_dataset import bring_dataset, bring_datasets
from jaxpipe.runtime.storage.object_folder import open_object_folder

DISKS = Disks(leader_of=(0, 1, 1, 3), hosts=("a", "b", "b", "c"))


def brought(root: Path) -> list[str]:
    """Return where each rank has its dataset, relative to its host's disk."""

    def work(transport: Transport) -> str:
        host = root / DISKS.hosts[transport.rank]
        found = bring_dataset(
            transport, DISKS, host / "data", copy=host / "run" / "dataset", timeout_s=20.0
        )
        open_dataset(found, verify=True)
        return found.relative_to(host).as_posix()

    return run_ranks(4, work)


def test_a_host_without_the_dataset_gets_it_once(tmp_path: Path, dataset: Path) -> None:
    for host in ("a", "c"):
        shutil.copytree(dataset, tmp_path / host / "data")
    assert brought(tmp_path) == ["data", "run/dataset", "run/dataset", "data"]
    copied = tmp_path / "b" / "run" / "dataset" / "train.npy"
    np.testing.assert_array_equal(np.load(copied), np.load(dataset / "train.npy"))
    before = copied.stat().st_mtime_ns
    assert brought(tmp_path) == ["data", "run/dataset", "run/dataset", "data"]
    assert copied.stat().st_mtime_ns == before
    copied.write_bytes(copied.read_bytes()[:-1])  # a transfer that was interrupted
    assert brought(tmp_path) == ["data", "run/dataset", "run/dataset", "data"]


def test_another_dataset_is_refused_on_all_ranks(tmp_path: Path, dataset: Path) -> None:
    shutil.copytree(dataset, tmp_path / "a" / "data")
    (tmp_path / "b").mkdir()
    text = tmp_path / "text.txt"
    text.write_text("another text. " * 500)
    prepare(Source(path=text), tmp_path / "b" / "data")
    with pytest.raises(DataError, match=r"the same dataset: .* on b differs from that on a"):
        brought(tmp_path)


def test_no_file_of_another_name_is_written(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(dataset, tmp_path / "a" / "data")
    monkeypatch.setattr(
        "jaxpipe.runtime.data.dataset.bring_dataset._checksums", lambda _: {"../x": "0"}
    )
    with pytest.raises(DataError, match=r"has the files .*; a names '\.\./x'"):
        brought(tmp_path)


def test_the_first_host_must_have_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the host of rank 0 must have the dataset"):
        brought(tmp_path)


def test_data_in_object_storage_stays_there(tmp_path: Path, dataset: Path) -> None:
    stored = open_object_folder("memory://dataset", setting="data.folder")
    shutil.copytree(dataset, tmp_path / "a" / "data")

    def work(transport: Transport) -> bool:
        host = tmp_path / DISKS.hosts[transport.rank]
        folders = (stored, host / "data")
        found = bring_datasets(transport, DISKS, folders, run_folder=host / "run", timeout_s=20.0)
        return found[0] == stored and (host / "data" == found[1]) == (transport.rank == 0)

    assert run_ranks(4, work) == [True] * 4
