"""The real bindings, over fakes of the packages that they call: what is called, in which order."""

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.comm.nccl import binding, cupy, find_binding, nccl4py
from jaxpipe.comm.nccl.cupy import CupyBinding
from jaxpipe.comm.nccl.nccl4py import Nccl4pyBinding

Log = list[tuple[Any, ...]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return a log, in which exporting an array to a stream is noted as well."""
    log: Log = []

    def export(array: jax.Array, *, stream: int) -> tuple[int, int, object]:
        log.append(("stream waits for array", stream))
        return 4096, array.nbytes, array

    for module in (nccl4py, cupy):
        monkeypatch.setattr(module, "export", export)
    return log


def recorder(log: Log, name: str) -> Any:
    return lambda *args, **kwargs: log.append((name, *args, *kwargs.values()))


def fake_nccl4py(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    stream = SimpleNamespace(
        handle=77,
        record=lambda: SimpleNamespace(is_done=True) if not recorder(log, "record")() else None,
        close=recorder(log, "close stream"),
    )
    device = SimpleNamespace(set_current=recorder(log, "set current"), create_stream=lambda: stream)
    communicator = SimpleNamespace(
        send=lambda memory, peer, stream: log.append(("send", memory, peer, stream.handle)),
        recv=lambda memory, peer, stream: log.append(("recv", memory, peer, stream.handle)),
        destroy=recorder(log, "destroy"),
        abort=recorder(log, "abort"),
    )

    def init(num_ranks: int, rank: int, unique_id: bytes) -> Any:
        log.append(("init", num_ranks, rank, unique_id))
        return communicator

    nccl = SimpleNamespace(
        get_unique_id=lambda: b"id",
        UniqueId=SimpleNamespace(from_bytes=lambda content: content),
        Communicator=SimpleNamespace(init=init),
    )
    buffer = SimpleNamespace(
        from_handle=lambda *memory, owner: memory if owner is not None else None
    )
    cuda = SimpleNamespace(Device=lambda _: device, Buffer=buffer)
    monkeypatch.setitem(sys.modules, "nccl", SimpleNamespace(core=nccl))
    monkeypatch.setitem(sys.modules, "nccl.core", nccl)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(core=cuda))
    monkeypatch.setitem(sys.modules, "cuda.core", cuda)


@pytest.mark.parametrize(("is_sender", "rank", "call"), [(True, 0, "send"), (False, 1, "recv")])
def test_nccl4py_waits_on_its_stream_sends_bytes_and_records(
    monkeypatch: pytest.MonkeyPatch, log: Log, is_sender: bool, rank: int, call: str
) -> None:
    fake_nccl4py(monkeypatch, log)
    binding: Any = find_binding("gpu", device_id=3)
    assert isinstance(binding, Nccl4pyBinding)
    channel: Any = binding.connect(unique_id=binding.unique_id(), is_sender=is_sender)
    done = (channel.send if is_sender else channel.receive)(jnp.ones(3, jnp.float32))
    assert done.is_done()
    channel.close()
    channel.abort()
    assert log == [
        ("set current",),
        ("init", 2, rank, b"id"),
        ("set current",),
        ("stream waits for array", 77),
        (call, (4096, 12), 1 - rank, 77),
        ("record",),
        ("set current",),
        ("destroy",),
        ("close stream",),
        ("set current",),
        ("abort",),
    ]


class FakeCupy:
    """`cupy.cuda` with a context manager for its device."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def Device(self, number: int) -> "FakeCupy":  # noqa: N802  the name is CuPy's
        self.log.append(("device", number))
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def Stream(self, *, non_blocking: bool) -> Any:  # noqa: N802
        assert non_blocking
        return SimpleNamespace(ptr=88)

    def Event(self, *, disable_timing: bool) -> Any:  # noqa: N802
        assert disable_timing
        return SimpleNamespace(
            done=False, record=lambda stream: self.log.append(("record", stream.ptr))
        )


@pytest.mark.parametrize(("is_sender", "rank", "call"), [(True, 0, "send"), (False, 1, "recv")])
def test_cupy_is_the_fallback_and_does_the_same(
    monkeypatch: pytest.MonkeyPatch, log: Log, is_sender: bool, rank: int, call: str
) -> None:
    communicator = SimpleNamespace(
        send=recorder(log, "send"),
        recv=recorder(log, "recv"),
        destroy=recorder(log, "destroy"),
        abort=recorder(log, "abort"),
    )

    def init(num_ranks: int, unique_id: bytes, rank: int) -> Any:
        log.append(("init", num_ranks, unique_id, rank))
        return communicator

    nccl = SimpleNamespace(get_unique_id=lambda: b"id", NcclCommunicator=init, NCCL_UINT8=1)
    monkeypatch.setitem(sys.modules, "nccl.core", None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy.cuda", FakeCupy(log))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    binding: Any = find_binding("gpu", device_id=3)
    assert isinstance(binding, CupyBinding)
    channel: Any = binding.connect(unique_id=binding.unique_id(), is_sender=is_sender)
    done = (channel.send if is_sender else channel.receive)(jnp.ones(3, jnp.float32))
    assert not done.is_done()
    channel.close()
    channel.abort()
    assert log == [
        ("device", 3),
        ("init", 2, b"id", rank),
        ("device", 3),
        ("stream waits for array", 88),
        (call, 4096, 12, 1, 1 - rank, 88),
        ("record", 88),
        ("destroy",),
        ("abort",),
    ]


def test_an_array_is_exported_to_a_stream_with_its_address() -> None:
    array = MagicMock(spec=type(jnp.ones(3)), nbytes=12)
    array.unsafe_buffer_pointer.return_value = 4096
    array.__dlpack__ = MagicMock()
    address, num_bytes, alive = binding.export(array, stream=77)
    array.__dlpack__.assert_called_once_with(stream=77)
    assert (address, num_bytes) == (4096, 12)
    assert isinstance(alive, tuple)
    assert alive[0] is array


def test_what_is_missing_is_named() -> None:
    def missing(device_id: int) -> Any:
        raise ImportError(f"no package for GPU {device_id}")

    words = find_binding("gpu", device_id=2, bindings=(missing, missing))
    assert isinstance(words, str)
    assert "no package here calls NCCL (no package for GPU 2; no package for GPU 2)" in words
    assert "install jaxpipe[cuda12]" in words
