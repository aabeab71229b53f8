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
        done: Callable[[int, str], None],
    ) -> None:
        """`done(rank, name)` is called when a rank has all that it came for."""
        self._job = job
        self._links = links
        self._done = done
        self._barrier = barrier(range(job.num_ranks))
        self._group_of = {
            (bucket, rank): number
            for bucket, collectives in job.collectives.items()
            for number, collective in enumerate(collectives)
            for each in collective
            for rank in (each.source, each.destination)
        }
        self._joints: dict[tuple[int, _Group], Joint] = {}

    def join(self, rank: int, phase: int, instruction: Instruction | None) -> None:
        """Let a rank come to the collective of an instruction, or to the barrier of a phase."""
        bucket = None if instruction is None else instruction.bucket
        group = (bucket, 0 if bucket is None else self._group_of[bucket, rank])
        if (phase, group) not in self._joints:
            self._joints[phase, group] = self._open(group)
        self._joints[phase, group].join(rank)

    def _open(self, group: _Group) -> Joint:
        bucket, number = group
        if bucket is None:
            send, name = partial(self._send, CONTROL), "barrier"
            return Joint(self._barrier, send=send, done=partial(self._leave, name))
        send, name = partial(self._send, self._job.gradients), f"reduce {bucket}"
        collective = self._job.collectives[bucket][number]
        return Joint(collective, send=send, done=partial(self._leave, name))

    def _leave(self, name: str, rank: int) -> None:
        self._done(rank, name)

    def _send(self, wire: Wire, transfer: Transfer, arrived: Callable[[], None]) -> None:
        pair = (self._job.device(transfer.source), self._job.device(transfer.destination))
        self._links[wire][pair].send(transfer.num_bytes, arrived)


def pairs(job: Job) -> dict[Wire, set[Pair]]:
    """Return which devices each wire of a job joins."""
    hops = {pair for row in job.placement for pair in pairwise(row)}
    joined: dict[Wire, set[Pair]] = {job.messages: hops | {(b, a) for a, b in hops}}
    if any(phase.meets for phase in job.phases):
        joined.setdefault(CONTROL, set()).update(_ends(job, barrier(range(job.num_ranks))))
    for collectives in job.collectives.values():
        for collective in collectives:
            joined.setdefault(job.gradients, set()).update(_ends(job, collective))
    return joined


def _ends(job: Job, collective: Collective) -> set[Pair]:
    return {(job.device(each.source), job.device(each.destination)) for each in collective}
