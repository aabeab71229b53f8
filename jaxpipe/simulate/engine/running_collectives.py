"""Collectives in the engine: their pending transfers, and the ranks that have joined them.

Ranks join the reductions and gathers of a step, and the barriers between its phases.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from jaxpipe.collective import NO_CODING, Collective, Transfer, barrier_transfers
from jaxpipe.network import Link, MessageCosts, Pair
from jaxpipe.schedule import Bucket, Instruction, Op
from jaxpipe.simulate.engine.coders import Coders
from jaxpipe.simulate.engine.step_model import StepModel

Send = Callable[[Transfer, Callable[[], None]], None]
"""Sends a transfer over the network, and calls back on its arrival."""


class RunningCollective:
    """One execution of a collective.

    A transfer leaves when its source has joined, its destination too unless the transfer is
    buffered (it needs a posted receive), and when all transfers that it waits for have arrived. A
    rank is done when it has joined and all that it receives and sends has arrived; of buffered
    messages only what it receives: their sender does not wait for them. Empty messages are
    buffered, and with `is_buffered` all of them.
    """

    def __init__(
        self,
        collective: Collective,
        *,
        send: Send,
        done: Callable[[int], None],
        is_buffered: bool = False,
    ) -> None:
        self._transfers = collective
        self._send = send
        self._done = done
        self._is_buffered = is_buffered
        self._needs = [len(transfer.after) + 1 + self._waits(transfer) for transfer in collective]
        self._users: list[list[int]] = [[] for _ in collective]
        self._waiting: dict[int, list[int]] = {}
        # What each rank still waits for. Its own joining counts: an empty message may arrive first.
        self._open = {rank: 1 for each in collective for rank in (each.source, each.destination)}
        for position, each in enumerate(collective):
            for need in each.after:
                self._users[need].append(position)
            for rank in self._waiting_ranks(each):
                self._open[rank] += 1
            # A buffered message needs no posted receive, and leaves without its destination.
            for rank in (each.source, each.destination)[: 1 + self._waits(each)]:
                self._waiting.setdefault(rank, []).append(position)

    def join(self, rank: int) -> None:
        """Let a rank join the collective."""
        assert rank in self._open, f"rank {rank} is not a member of this collective"
        for position in self._waiting.pop(rank, ()):
            self._satisfy(position)
        self._complete(rank)

    def _satisfy(self, position: int) -> None:
        self._needs[position] -= 1
        if self._needs[position] == 0:
            self._send(self._transfers[position], lambda: self._arrive(position))

    def _arrive(self, position: int) -> None:
        # Before `_done`: what the rank sends next queues behind its part in the collective.
        for user in self._users[position]:
            self._satisfy(user)
        transfer = self._transfers[position]
        for rank in self._waiting_ranks(transfer):
            self._complete(rank)

    def _waits(self, transfer: Transfer) -> bool:
        """Return whether a transfer needs a posted receive, and its sender its arrival."""
        return transfer.num_bytes > 0 and not self._is_buffered

    def _waiting_ranks(self, transfer: Transfer) -> tuple[int, ...]:
        """Return the ranks that are not done before a transfer has arrived."""
        ends = (transfer.destination, transfer.source)
        return ends if self._waits(transfer) else ends[:1]

    def _complete(self, rank: int) -> None:
        self._open[rank] -= 1
        if self._open[rank] == 0:
            self._done(rank)


BUFFERED_BYTES = 2**22
"""Of a tied embedding, at most: the largest buffer of a socket in Linux (`net.ipv4.tcp_wmem`).

Its ends are reduced after computes that end apart by a latency or more. Gradients of stages are
larger, and begin together: their messages count as sent once both ends have joined.
"""

BARRIER = "barrier"
"""The name of a barrier in a trace."""

GATHER = "gather"
"""The name of an all-gather of updated parameters in a trace."""

CONTROL = MessageCosts()
"""The costs of the empty messages of a barrier: latency alone."""

AllReduceKey: TypeAlias = Bucket | int
"""A segment, or a bucket of which a rank has one reduction."""

_Group: TypeAlias = tuple[Bucket | Op | None, int]
"""A bucket, `Op.GATHER`, or None for the barrier of all ranks; the index of its collective."""


def is_buffered(kind: Bucket | Op | None, collective: Collective) -> bool:
    """Return whether the messages of a reduction leave before their receives are posted."""
    if kind is Bucket.SCALARS:
        return True
    num_bytes = sum(transfer.num_bytes for transfer in collective)
    return kind is Bucket.TIED and num_bytes <= BUFFERED_BYTES


class CollectiveTracker:
    """The running collectives; each starts when its first rank joins."""

    def __init__(
        self,
        job: StepModel,
        *,
        links: Mapping[MessageCosts, Mapping[Pair, Link]],
        coders: Coders,
        done: Callable[[int, str, AllReduceKey | None], None],
    ) -> None:
        """`done(rank, name, key)` is called when a rank has completed a collective.

        `key` is None unless it is a reduction.
        """
        self._job = job
        self._links = links
        self._coders = coders
        self._done = done
        self._barrier = barrier_transfers(range(job.num_ranks), job.barrier)
        groups: dict[Bucket | Op, tuple[Collective, ...]] = {
            **job.collectives,
            Op.GATHER: job.gathers,
        }
        self._collectives: dict[_Group, Collective] = {
            (kind, number): collective
            for kind, collectives in groups.items()
            for number, collective in enumerate(collectives)
        }
        self._members = {
            key: frozenset(rank for each in collective for rank in (each.source, each.destination))
            for key, collective in self._collectives.items()
        }
        self._running: dict[tuple[int, _Group], RunningCollective] = {}

    def join(self, rank: int, phase: int, instruction: Instruction | None) -> None:
        """Let a rank join the collective of an instruction, or the barrier of a phase."""
        group = self._group(rank, instruction)
        if (phase, group) not in self._running:
            self._running[phase, group] = self._open(group)
        self._running[phase, group].join(rank)

    def _group(self, rank: int, instruction: Instruction | None) -> _Group:
        if instruction is None:
            return (None, 0)
        kind = instruction.bucket or instruction.op
        numbers = self._job.meant_by(instruction)
        # At most one has the rank: without a segment the collectives of a bucket are disjoint.
        return next((kind, each) for each in numbers if rank in self._members[kind, each])

    def _open(self, group: _Group) -> RunningCollective:
        kind, number = group
        if kind is None:
            done = partial(self._leave, BARRIER, None)
            return RunningCollective(self._barrier, send=partial(self._send, CONTROL), done=done)
        key = number if kind is Bucket.STAGE else kind if isinstance(kind, Bucket) else None
        name = GATHER if kind is Op.GATHER else f"{Op.REDUCE} {kind}"
        return RunningCollective(
            self._collectives[group],
            send=partial(self._send, self._job.gradients),
            done=partial(self._leave, name, key),
            is_buffered=is_buffered(kind, self._collectives[group]),
        )

    def _leave(self, name: str, key: AllReduceKey | None, rank: int) -> None:
        self._done(rank, name, key)

    def _send(self, costs: MessageCosts, transfer: Transfer, arrived: Callable[[], None]) -> None:
        pair = (self._job.device(transfer.source), self._job.device(transfer.destination))
        link, coding = self._links[costs][pair], transfer.coding
        if coding is NO_CODING:
            link.send(transfer.num_bytes, arrived)
            return
        decoded = partial(self._coders.run, transfer.destination, coding.decode_s, arrived)
        leave = partial(link.send, transfer.num_bytes, decoded)
        self._coders.run(transfer.source, coding.encode_s, leave)


def pairs(job: StepModel) -> dict[MessageCosts, set[Pair]]:
    """Return the pairs of devices between which each kind of message travels."""
    rounds = [row if job.num_chunks == 1 else (*row, row[0]) for row in job.placement]
    hops = {(a, b) for row in rounds for a, b in pairwise(row) if a != b}
    # Equal costs are one key: such messages share a link, and queue behind each other.
    joined: dict[MessageCosts, set[Pair]] = {job.messages: hops | {(b, a) for a, b in hops}}
    if any(phase.meets for phase in job.phases):
        joined.setdefault(CONTROL, set()).update(
            _ends(job, barrier_transfers(range(job.num_ranks), job.barrier))
        )
    for collective in job.all_collectives:
        joined.setdefault(job.gradients, set()).update(_ends(job, collective))
    return joined


def _ends(job: StepModel, collective: Collective) -> set[Pair]:
    return {(job.device(each.source), job.device(each.destination)) for each in collective}
