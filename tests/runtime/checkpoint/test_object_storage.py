"""Checkpoints behind a URL: saved, committed, removed and read by range, in fsspec's memory."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from s3fs import S3FileSystem

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.runtime.checkpoint import (
    Checkpoint,
    committed,
    latest,
    newest_valid,
    open_checkpoint,
)
from jaxpipe.runtime.checkpoint.async_saver import Saver
from jaxpipe.runtime.checkpoint.manifest import MANIFEST
from jaxpipe.runtime.checkpoint.object_storage.object_store import ObjectStore
from jaxpipe.runtime.checkpoint.resume import agree_on_checkpoint
from jaxpipe.runtime.checkpoint.save_parts import Snapshot
from jaxpipe.runtime.config import CheckpointConfig
from jaxpipe.runtime.hooks import NO_HOOKS, Hooks, SavePhase
from jaxpipe.runtime.storage.object_folder import (
    ObjectFolder,
    open_object_folder,
)
from tests.runtime.checkpoint.own_disks.test_own_disks import FailAt, KilledError
from tests.s3_server import s3_server


@pytest.fixture(params=["memory", "file"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectFolder]:
    names = {"memory": request.node.name.replace("[", "-"), "file": f"{tmp_path}/new/store"}
    found = open_object_folder(f"{request.param}://{names[request.param]}")
    yield found
    found.remove(found.sizes())


def tensors_of(rank: int, step: int) -> dict[str, np.ndarray]:
    values = np.random.default_rng(7 * step + rank).normal(size=(3, 5)).astype(np.float32)
    return {f"of {rank}": values, f"scalar {rank}": np.array(step, np.int32)}


def save(folder: ObjectFolder, *steps: int, hooks: Hooks = NO_HOOKS, seed: int = 0) -> None:
    def work(transport: Transport) -> str | None:
        rank = transport.rank
        saver = Saver(transport, folder=folder, keep=2, timeout_s=20.0, hooks=hooks)
        for step in steps:
            tensors = tensors_of(rank, step + seed)
            saver.begin(
                Snapshot(step=step, shards={f"stage-{rank}": tensors}, metadata={"seed": 1})
            )
        return saver.close()

    assert run_ranks(2, work) == [None, None]


def check(found: Checkpoint, *, step: int, seed: int = 0) -> None:
    assert found.step == step
    expected = tensors_of(0, step + seed) | tensors_of(1, step + seed)
    read = found.read(expected)
    assert {name: array.tolist() for name, array in read.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


def test_the_newest_stay_and_the_manifest_names_every_object(folder: ObjectFolder) -> None:
    save(folder, 1, 2, 3)
    assert list(committed(folder)) == [2, 3]
    check(newest_valid(folder), step=3)
    check(newest_valid(folder, before=3), step=2)
    for each in committed(folder).values():
        assert isinstance(each, ObjectFolder)
        assert set(each.sizes()) == {*open_checkpoint(each).names_by_file, MANIFEST}


@pytest.mark.parametrize("phase", [SavePhase.MANIFEST, SavePhase.PRUNE, SavePhase.REMOVE])
def test_a_killed_save_leaves_a_whole_checkpoint(folder: ObjectFolder, phase: SavePhase) -> None:
    save(folder, 1, 2)
    store = ObjectStore(folder, keep=2, hooks=FailAt(phase))
    store.begin(step=3)
    entries = store.write("stage-0", tensors_of(0, 3), step=3)
    entries += store.write("stage-1", tensors_of(1, 3), step=3)
    with pytest.raises(KilledError):
        store.commit(entries, {}, step=3)
    check(newest_valid(folder), step=2 if phase is SavePhase.MANIFEST else 3)
    save(folder, 3)  # and nothing of it is left
    check(newest_valid(folder), step=3)
    assert list(committed(folder)) == [2, 3]
    assert len((folder / "step-00000003").sizes()) == 3


def test_a_repeated_step_is_replaced_by_its_manifest(folder: ObjectFolder) -> None:
    save(folder, 1)
    store = ObjectStore(folder, keep=2, hooks=NO_HOOKS)
    store.begin(step=1)
    store.write("stage-0", tensors_of(0, 9), step=1)
    check(newest_valid(folder), step=1)  # until the manifest is written
    save(folder, 1, seed=5)
    check(newest_valid(folder), step=1, seed=5)
    assert len((folder / "step-00000001").sizes()) == 3


def test_a_truncated_object_is_passed_over(
    folder: ObjectFolder, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1, 2)
    newest = folder / "step-00000002"
    file = min(newest.sizes().keys() - {MANIFEST})
    newest.put(file, newest.read(file)[:-1])
    check(newest_valid(folder), step=1)
    assert "not as long as its header says" in caplog.text


def test_a_flipped_bit_is_found_when_the_tensor_is_read(folder: ObjectFolder) -> None:
    save(folder, 1)
    newest = newest_valid(folder)
    file = newest.tensors["of 0"].file
    content = bytearray((folder / "step-00000001").read(file))
    content[-20] ^= 1
    (folder / "step-00000001").put(file, bytes(content))
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        newest.read(["of 0"])
    newest.read(["of 1"])


def test_a_rank_reads_the_bytes_of_its_tensors_alone(
    folder: ObjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(folder, keep=1, hooks=NO_HOOKS)
    tensors = {name: np.full(100_000, n, np.float32) for n, name in enumerate("abcd")}
    store.commit(store.write("stage-0", tensors, step=1), {}, step=1)
    found = newest_valid(folder)
    ranges: list[int] = []
    read = ObjectFolder.read_ranges

    def counting(self: ObjectFolder, file: str, wanted: list[tuple[int, int]]) -> list[bytes]:
        ranges.extend(end - begin for begin, end in wanted)
        return read(self, file, wanted)

    monkeypatch.setattr(ObjectFolder, "read_ranges", counting)
    assert found.read("bc")["c"][0] == 2
    header, both = ranges
    assert both == 800_000
    assert header <= 2**16


def test_every_dtype_comes_back(folder: ObjectFolder) -> None:
    dtypes = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    floats = (ml_dtypes.bfloat16, np.float16, np.float32, np.float64)
    tensors = {str(np.dtype(d)): np.ones((2, 0, 3), d) for d in dtypes}
    tensors |= {str(np.dtype(d)): np.array([[1.5, -2.0]], d).T for d in floats}
    store = ObjectStore(folder, keep=1, hooks=NO_HOOKS)
    store.commit(store.write("stage-0", tensors, step=0), {}, step=0)
    found = open_checkpoint(latest(folder)).read(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_all_ranks_open_the_checkpoint_of_rank_0(folder: ObjectFolder) -> None:
    save(folder, 4)

    def work(transport: Transport) -> None:
        found = newest_valid(folder) if transport.rank == 0 else None
        agreed = agree_on_checkpoint(transport, found, timeout_s=20.0)
        assert agreed is not None
        check(agreed, step=4)

    run_ranks(2, work)


def test_the_check_does_what_a_save_does_and_leaves_nothing(
    folder: ObjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.check_reachable()
    assert folder.sizes() == {}
    for method in ("write", "put", "read_ranges", "read", "sizes"):
        with monkeypatch.context() as patch:
            patch.setattr(ObjectFolder, method, refusing)
            with pytest.raises(ConfigError, match=r"can write, is .*: no such right"):
                folder.check_reachable()
    assert folder.sizes() == {}


def refusing(*_: object) -> None:
    raise OSError("no such right")


def test_a_bucket_that_is_not_there_or_silent_is_one_error() -> None:
    with s3_server():
        place = open_object_folder("s3://no-such-bucket/run")
        with pytest.raises(ConfigError, match="The specified bucket does not exist"):
            place.check_reachable()
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        patch.setenv("AWS_ACCESS_KEY_ID", "of-a-test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "of-a-test")
        S3FileSystem.clear_instance_cache()
        place = open_object_folder("s3://silent/run")
        with pytest.raises(ConfigError, match=r"it has not answered after 0\.5 s"):
            place.check_reachable(timeout_s=0.5)


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="without credentials") as caught:
        CheckpointConfig(folder="s3://key:hidden@bucket/run")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "bucket", "s3://", str(Path("/checkpoints"))])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="`folder` must be a URL"):
        CheckpointConfig(folder=url)


def test_without_fsspec_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"install\s+jaxpipe\[object-storage\]"):
        open_object_folder("s3://bucket/run")


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a URL that fsspec knows"):
        open_object_folder("nothing-known://bucket/run")
