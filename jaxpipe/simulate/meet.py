"""Where ranks come together: the reductions of a job, and its barriers."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from jaxpipe.schedule import Bucket, Instruction
from jaxpipe.simulate.collective import Collective, Transfer, barrier
from jaxpipe.simulate.job import Job
from jaxpipe.simulate.joint import Joint
from jaxpipe.simulate.link import Link
from jaxpipe.simulate.network import Pair
from jaxpipe.simulate.wire import Wire

CONTROL = Wire()
"""How the empty messages of a barrier travel: by latency alone."""

_Group: TypeAlias = tuple[Bucket | None, int]
"""A bucket, or None for the barrier of all ranks, and the position of one of its collectives."""


class Meetings:
    """The collectives that are under way, each started by the first rank that comes to it."""

    def __init__(
        self,
        job: Job,
        *,
        links: Mapping[Wire, Mapping[Pair, Link]],
        done: Callable[[int, str, int | None], None],
    ) -> None:
        """`done(rank, name, stage)` is called when a rank has all that it came for.

        `stage` is None where the sum is not that of one stage.
        """
        self._job = job
        self._links = links
        self._done = done
        self._barrier = barrier(range(job.num_ranks))
        self._members = {
            (bucket, number): frozenset(
                rank for each in collective for rank in (each.source, each.destination)
            )
            for bucket, collectives in job.collectives.items()
            for number, collective in enumerate(collectives)
        }
        self._joints: dict[tuple[int, _Group], Joint] = {}

    def join(self, rank: int, phase: int, instruction: Instruction | None) -> None:
        """Let a rank come to the collective of an instruction, or to the barrier of a phase."""
        group = self._group(rank, instruction)
        if (phase, group) not in self._joints:
            self._joints[phase, group] = self._open(group)
        self._joints[phase, group].join(rank)

    def _group(self, rank: int, instruction: Instruction | None) -> _Group:
        if instruction is None:
            return (None, 0)
        bucket = instruction.bucket
        assert bucket is not None, instruction
        numbers = self._job.meant_by(instruction)
        return next((bucket, each) for each in numbers if rank in self._members[bucket, each])

    def _open(self, group: _Group) -> Joint:
        bucket, number = group
        if bucket is None:
            done = partial(self._leave, "barrier", None)
            return Joint(self._barrier, send=partial(self._send, CONTROL), done=done)
        stage = number if bucket is Bucket.STAGE else None
        done = partial(self._leave, f"reduce {bucket}", stage)
        collective = self._job.collectives[bucket][number]
        return Joint(collective, send=partial(self._send, self._job.gradients), done=done)

    def _leave(self, name: str, stage: int | None, rank: int) -> None:
        self._done(rank, name, stage)

    def _send(self, wire: Wire, transfer: Transfer, arrived: Callable[[], None]) -> None:
        pair = (self._job.device(transfer.source), self._job.device(transfer.destination))
        self._links[wire][pair].send(transfer.num_bytes, arrived)


def pairs(job: Job) -> dict[Wire, set[Pair]]:
    """Return which devices each wire of a job joins."""
    rounds = [row if job.num_chunks == 1 else (*row, row[0]) for row in job.placement]
    hops = {(a, b) for row in rounds for a, b in pairwise(row) if a != b}
    joined: dict[Wire, set[Pair]] = {job.messages: hops | {(b, a) for a, b in hops}}
    if any(phase.meets for phase in job.phases):
        joined.setdefault(CONTROL, set()).update(_ends(job, barrier(range(job.num_ranks))))
    for collectives in job.collectives.values():
        for collective in collectives:
            joined.setdefault(job.gradients, set()).update(_ends(job, collective))
    return joined


def _ends(job: Job, collective: Collective) -> set[Pair]:
    return {(job.device(each.source), job.device(each.destination)) for each in collective}
