"""A fake NCCL in one process, as strict as the real one: order, sizes, threads, and asynchrony."""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, get_ident

import jax

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.comm.nccl import NcclTransport

POLLS = 3


class FakeNcclError(Exception):
    """What the fake raises; nothing but the transport knows it."""


@dataclass(slots=True)
class _Wire:
    """What both ends of a channel have launched: the n-th send meets the n-th receive."""

    changed: Condition = field(default_factory=Condition)
    num_ends: int = 0
    sends: list[jax.Array] = field(default_factory=list)
    receives: list[jax.Array] = field(default_factory=list)
    num_copied: int = 0


@dataclass(slots=True)
class World:
    """All channels, and everything that was launched, in order."""

    wires: dict[bytes, _Wire] = field(default_factory=dict)
    launches: list[tuple[str, bytes, int]] = field(default_factory=list)
    closed: list[bytes] = field(default_factory=list)
    aborted: list[bytes] = field(default_factory=list)
    fails: Callable[[str, jax.Array], bool] = lambda *_: False
    hangs: bool = False


@dataclass(slots=True)
class _Done:
    """Done some polls after both ends have launched: whoever reads earlier, reads too early."""

    world: World
    wire: _Wire
    number: int
    polls: int = 0

    def is_done(self) -> bool:
        wire = self.wire
        with wire.changed:
            if self.world.hangs or min(len(wire.sends), len(wire.receives)) <= self.number:
                return False
            self.polls += 1
            if self.polls < POLLS:
                return False
            while wire.num_copied <= self.number:
                _copy(wire.sends[wire.num_copied], wire.receives[wire.num_copied])
                wire.num_copied += 1
            return True


def _copy(source: jax.Array, destination: jax.Array) -> None:
    if source.nbytes != destination.nbytes:
        raise FakeNcclError(f"{source.nbytes} bytes were sent into {destination.nbytes}")
    ctypes.memmove(
        destination.block_until_ready().unsafe_buffer_pointer(),
        source.block_until_ready().unsafe_buffer_pointer(),
        source.nbytes,
    )


@dataclass(slots=True)
class FakeChannel:
    world: World
    unique_id: bytes
    is_sender: bool
    threads: set[int] = field(default_factory=set)

    def send(self, array: jax.Array) -> _Done:
        assert self.is_sender
        return self._launch("send", array)

    def receive(self, buffer: jax.Array) -> _Done:
        assert not self.is_sender
        return self._launch("receive", buffer)

    def close(self) -> None:
        self.world.closed.append(self.unique_id)

    def abort(self) -> None:
        self.world.aborted.append(self.unique_id)

    def _launch(self, kind: str, array: jax.Array) -> _Done:
        self.threads.add(get_ident())
        assert len(self.threads) <= 2, "one thread makes the channel, one other launches"
        assert array.nbytes > 0, "NCCL has nothing to do"
        if self.world.fails(kind, array):
            raise FakeNcclError(f"the {kind} of {array.nbytes} bytes was refused")
        wire = self.world.wires[self.unique_id]
        with wire.changed:
            launched = wire.sends if self.is_sender else wire.receives
            launched.append(array)
            self.world.launches.append((kind, self.unique_id, array.nbytes))
            return _Done(self.world, wire, len(launched) - 1)


@dataclass(slots=True)
class FakeBinding:
    world: World

    def unique_id(self) -> bytes:
        return os.urandom(128)

    def connect(self, *, unique_id: bytes, is_sender: bool) -> FakeChannel:
        """Wait for the other end, as NCCL does."""
        wire = self.world.wires.setdefault(unique_id, _Wire())
        with wire.changed:
            wire.num_ends += 1
            wire.changed.notify_all()
            if not wire.changed.wait_for(lambda: wire.num_ends == 2, 10.0):
                raise FakeNcclError("the other end never came")
        return FakeChannel(self.world, unique_id, is_sender)


def run_with_fake_nccl(
    num_ranks: int,
    work: Callable[[Transport], object],
    *,
    world: World | None = None,
    pairs: tuple[tuple[int, int], ...] | None = None,
) -> list[object]:
    """Run `work` on ranks that are threads, over a fake NCCL; each closes its transport."""
    world = world or World()

    def work_with_nccl(transport: Transport) -> object:
        nccl = NcclTransport(transport, FakeBinding(world), pairs=pairs, timeout_s=20.0)
        try:
            result = work(nccl)
        except BaseException as error:
            nccl.close(error=error)
            raise
        nccl.close()
        return result

    return run_ranks(num_ranks, work_with_nccl)
