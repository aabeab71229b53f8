"""A process that only saves checkpoints, one after the other, until it is killed.

It uses the runtime's own saver, with two ranks as threads, and prints when a save has begun, and
when it is committed or has failed. Each step is saved twice in a row, as in a run that repeats a
step; the content of a save follows from its number alone::

    save   0        1        2        3        4
    step   1        1        2        2        3        ...

Run by `jaxpipe.chaos.save`, as `python -m jaxpipe.chaos.harness.save_loop '{"folder": ...}'`.
"""

import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from jaxpipe.chaos.harness.save_points import Cutoff, SavePoint
from jaxpipe.comm import BARRIER_TAG, Transport, barrier, run_ranks
from jaxpipe.runtime.checkpoint.async_saver import Saver, Snapshot

NUM_RANKS = 2
KEEP = 2
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What is saved, and how it ends: `num_saves`, each shard of `shard_bytes`.

    `asynchronous` prepares the next snapshot during a save. `point` kills the process there, in the
    save `fatal`. In the saves from `full_from` to before `full_until` the disk is full: for files
    longer than half a shard, or, with a `filler`, by a file that takes all space.
    """

    folder: str
    num_saves: int
    shard_bytes: int = 1 << 16
    asynchronous: bool = False
    point: str | None = None
    fatal: int = 0
    full_from: int = 0
    full_until: int = 0
    filler: str | None = None


def step_of_save(number: int) -> int:
    """Return the step of a save.

    >>> [step_of_save(number) for number in range(5)]
    [1, 1, 2, 2, 3]
    """
    return number // 2 + 1


def content(number: int, *, rank: int, shard_bytes: int) -> Mapping[str, np.ndarray]:
    """Return the tensors of a rank in the save of this number."""
    random = np.random.default_rng((number, rank))
    size = shard_bytes // 8  # two float32 arrays
    return {f"{name} of {rank}": random.normal(size=size).astype(np.float32) for name in "ab"}


def snapshot(number: int, *, rank: int, shard_bytes: int) -> Snapshot:
    """Return them as a snapshot for the saver."""
    return Snapshot(
        step=step_of_save(number),
        shards={f"stage-{rank}": content(number, rank=rank, shard_bytes=shard_bytes)},
        metadata={"save": number},
    )


def main(loop: Loop) -> None:
    """Save until the end, or until killed."""
    cutoff = None if loop.point is None else Cutoff(SavePoint[loop.point])
    run_ranks(NUM_RANKS, lambda transport: _Rank(loop, transport, cutoff).save_all())


class _Rank:
    """One rank; rank 0 prints progress and fills the disk."""

    def __init__(self, loop: Loop, transport: Transport, cutoff: Cutoff | None) -> None:
        self._loop = loop
        self._transport = transport
        self._cutoff = cutoff
        self._saver = Saver(transport, folder=Path(loop.folder), keep=KEEP, timeout_s=_TIMEOUT_S)

    def save_all(self) -> None:
        following = self._snapshot(0)
        for number in range(self._loop.num_saves):
            barrier(self._transport, tag=BARRIER_TAG, timeout_s=_TIMEOUT_S)
            with self._disk(number):
                following = self._save(following, number)

    def _save(self, shot: Snapshot, number: int) -> Snapshot:
        """Save, and return the next snapshot, made during the save or afterwards."""
        # One of the threads arms it: the audit hook is that of the process.
        if self._transport.rank == 0 and self._cutoff is not None and number == self._loop.fatal:
            self._cutoff.arm()
        self._print(f"began {number}")
        self._saver.begin(shot)
        following = self._snapshot(number + 1) if self._loop.asynchronous else None
        failure = self._saver.finish()
        self._print(f"{'saved' if failure is None else 'failed'} {number}")
        return following or self._snapshot(number + 1)

    def _snapshot(self, number: int) -> Snapshot:
        return snapshot(number, rank=self._transport.rank, shard_bytes=self._loop.shard_bytes)

    def _print(self, line: str) -> None:
        if self._transport.rank == 0:
            os.write(1, f"{line}\n".encode())  # without a buffer, which a kill would take along

    @contextmanager
    def _disk(self, number: int) -> Iterator[None]:
        loop = self._loop
        is_full = loop.full_from <= number < loop.full_until
        if self._transport.rank == 0 and is_full:
            with full_disk(loop):
                yield
        else:
            yield


@contextmanager
def full_disk(loop: Loop) -> Iterator[None]:
    """Fill the disk for the block."""
    if loop.filler is not None:
        try:
            _fill(Path(loop.filler))
            yield
        finally:
            Path(loop.filler).unlink(missing_ok=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The soft limit can be raised again. Python ignores SIGXFSZ: a longer write is an OSError.
    resource.setrlimit(resource.RLIMIT_FSIZE, (loop.shard_bytes // 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:  # else `close` would write the rest, and raise
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Loop))
