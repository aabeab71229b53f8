"""Posted receives: of a long message only the eager bytes leave before its receive is posted.

::

    sender      forward ├ eager bytes ┤   ...   ├ rest ┤
    receiver    backward                 ├ request ┤   ├ latency ┤ forward
                                         └ posts the receive

Buffers hold the eager bytes at the receiver: NCCL's and the kernel's. A runtime that posts all
receives ahead has no limit, one that posts them in the order of its schedule has them some computes
ahead (`jaxpipe.schedule.early_receives`).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

from jaxpipe.network import EventQueue, Link
from jaxpipe.schedule import Instruction
from jaxpipe.schedule.early_receives import early_receives
from jaxpipe.simulate.engine.step_model import Step, StepModel

Posts: TypeAlias = tuple[Instruction, ...]
"""Receives that a rank posts together."""


def posts_by_position(
    job: StepModel, programs: Sequence[Sequence[Step]]
) -> list[Mapping[int, Posts]]:
    """Return the receives that each rank posts ahead, by the position of its step behind them.

    `programs[rank]` are the steps of a rank, of the first replica alone where all have the same.
    """
    if not job.posts_ahead:
        return [{}] * job.num_ranks
    (phase,) = job.phases
    replicas = job.replicas[: len(programs)]
    by_replica = {replica: early_receives(phase.of(replica)) for replica in set(replicas)}
    posts = [
        _behind(steps, by_replica[replica][job.number(rank)])
        for rank, (replica, steps) in enumerate(zip(replicas, programs, strict=True))
    ]
    return posts * (job.num_ranks // len(posts))


def _behind(steps: Sequence[Step], by_count: Mapping[int, Posts]) -> Mapping[int, Posts]:
    computes = [
        position
        for position, step in enumerate(steps)
        if step.instruction is not None and step.instruction.is_compute
    ]
    # Behind the compute itself: its own send comes later.
    behind = [0, *(position + 1 for position in computes)]
    return {behind[count]: receives for count, receives in by_count.items()}


class PostedReceives:
    """The messages whose rest waits for a receive, and the receives that wait for a message."""

    def __init__(self, queue: EventQueue, eager_bytes: float) -> None:
        """Of each message, `eager_bytes` leave at once."""
        self._queue = queue
        self._eager_bytes = eager_bytes
        self._requested: set[Hashable] = set()
        self._waiting: dict[Hashable, Callable[[], None]] = {}

    def send(
        self, message: Hashable, link: Link, num_bytes: float, arrived: Callable[[], object]
    ) -> None:
        """Send a message; `arrived` is called when its last byte is at its destination."""
        if num_bytes <= self._eager_bytes:
            link.send(num_bytes, arrived)
            return
        has_eager = self._eager_bytes > 0
        if has_eager:
            link.send(self._eager_bytes, _ignore)

        def rest() -> None:
            link.send(num_bytes - self._eager_bytes, arrived, is_rest=has_eager)

        if message in self._requested:
            self._requested.remove(message)
            rest()
        else:
            self._waiting[message] = rest

    def post(self, message: Hashable, num_bytes: float, *, latency_s: float) -> None:
        """Post the receive of a message; the request reaches its sender after a latency."""
        if num_bytes > self._eager_bytes:
            self._queue.at(self._queue.now_s + latency_s, self._request, message)

    def _request(self, message: Hashable) -> None:
        rest = self._waiting.pop(message, None)
        if rest is None:
            self._requested.add(message)
        else:
            rest()


def _ignore() -> None:
    """Do nothing when the eager bytes arrive."""
