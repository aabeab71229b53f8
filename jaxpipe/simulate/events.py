"""The engine: ranks that follow their programs, over a network that takes its time.

Every rank executes the lowered programs that the runtime executes, instruction by instruction::

    forward, backward, update   the rank is busy for the instruction's seconds
    send                        the message is posted to its link; the rank goes on
    receive                     the rank waits until the message has arrived
    reduce                      the rank joins a collective and waits for its own part of it

Compute and transfers overlap as the programs allow. The same job always gives the same trace.
"""

from functools import partial
from typing import TypeAlias

from jaxpipe.errors import PlanError
from jaxpipe.schedule import Instruction, Op, describe
from jaxpipe.simulate.job import Job
from jaxpipe.simulate.link import Link
from jaxpipe.simulate.meet import Meetings, pairs
from jaxpipe.simulate.network import open_links
from jaxpipe.simulate.queue import EventQueue
from jaxpipe.simulate.steps import Step, steps
from jaxpipe.trace import Lane, Span, Trace, Truth

_Message: TypeAlias = tuple[int, int, int | None]
"""The rank that sent it, its phase, its microbatch."""


def simulate(job: Job) -> Trace:
    """Return what every rank does when, in one step of training.

    A send lasts from its posting to its arrival, a receive from the moment its rank began to wait.

    Cost: some microseconds for each instruction and message; more where NICs are shared.

    Raises:
        PlanError: programs wait for each other for ever.
    """
    run = _Run(job)
    run.execute()
    return Trace(
        truth=Truth.SIMULATED,
        rank_names=tuple(
            f"stage {rank % job.num_stages} on {job.cluster.devices[job.device(rank)].name}"
            for rank in range(job.num_ranks)
        ),
        spans=tuple(run.spans),
    )


class _Rank:
    """Where a rank stands in its program, what has arrived for it, and what it waits for."""

    __slots__ = ("arrived", "awaited", "first", "index", "position", "since_s", "steps")

    def __init__(self, index: int, *, num_stages: int, steps: tuple[Step, ...]) -> None:
        self.index = index
        self.first = index - index % num_stages
        self.steps = steps
        self.position = 0
        self.arrived: set[_Message] = set()
        self.awaited: _Message | None = None
        self.since_s = 0.0


class _Run:
    """One execution of a job."""

    def __init__(self, job: Job) -> None:
        self.spans: list[Span] = []
        self._job = job
        self._queue = EventQueue()
        programs = [steps(job, stage) for stage in range(job.num_stages)]
        self._ranks = [
            _Rank(rank, num_stages=job.num_stages, steps=programs[rank % job.num_stages])
            for rank in range(job.num_ranks)
        ]
        self._devices = [job.device(rank) for rank in range(job.num_ranks)]
        links = open_links(self._queue, job.cluster, pairs(job), nic_efficiency=job.nic_efficiency)
        self._links = links.get(job.messages, {})
        self._meetings = Meetings(job, links=links, done=self._leave)

    def execute(self) -> None:
        for rank in self._ranks:
            self._advance(rank)
        self._queue.run()
        for rank in self._ranks:
            if rank.position < len(rank.steps):
                instruction = rank.steps[rank.position].instruction
                words = "meet" if instruction is None else describe(instruction)
                raise PlanError(
                    f"programs come to their end: rank {rank.index}, position {rank.position}, "
                    f"`{words}` waits for ever; give the other ranks what it waits for"
                )

    def _advance(self, rank: _Rank) -> None:
        """Let a rank go on until it has to wait."""
        while rank.position < len(rank.steps):
            phase, instruction = rank.steps[rank.position]
            if instruction is None or instruction.op is Op.REDUCE:
                rank.since_s = self._queue.now_s
                self._meetings.join(rank.index, phase, instruction)
                return
            if not self._execute(rank, instruction, phase):
                return
            rank.position += 1

    def _execute(self, rank: _Rank, instruction: Instruction, phase: int) -> bool:
        """Begin an instruction; return whether the rank can go on at once."""
        match instruction.op:
            case Op.RECEIVE:
                return self._receive(rank, instruction, phase)
            case Op.SEND:
                return self._send(rank, instruction, phase)
            case Op.UPDATE:
                seconds, lane = self._job.update_s, Lane.UPDATE
            case Op.FORWARD:
                seconds, lane = self._job.forward_s[rank.index], Lane.COMPUTE
            case _:
                seconds, lane = self._job.backward_s[rank.index], Lane.COMPUTE
        self._work(rank, lane, instruction, seconds)
        return False

    def _go_on(self, rank: _Rank) -> None:
        rank.position += 1
        self._advance(rank)

    def _work(self, rank: _Rank, lane: Lane, instruction: Instruction, seconds: float) -> None:
        end_s = self._queue.now_s + seconds
        self._note(
            rank,
            lane,
            instruction.op,
            since_s=self._queue.now_s,
            until_s=end_s,
            microbatch=instruction.microbatch,
        )
        self._queue.at(end_s, self._go_on, rank)

    def _send(self, rank: _Rank, instruction: Instruction, phase: int) -> bool:
        assert instruction.peer is not None, instruction
        receiver = self._ranks[rank.first + instruction.peer]
        message = (rank.index, phase, instruction.microbatch)
        self._link(rank, receiver).send(
            self._job.activation_bytes,
            partial(self._arrive, rank, receiver, message, self._queue.now_s),
        )
        return True

    def _receive(self, rank: _Rank, instruction: Instruction, phase: int) -> bool:
        assert instruction.peer is not None, instruction
        message = (rank.first + instruction.peer, phase, instruction.microbatch)
        rank.since_s = self._queue.now_s
        if message in rank.arrived:
            self._take(rank, message)
            return True
        rank.awaited = message
        return False

    def _arrive(self, rank: _Rank, receiver: _Rank, message: _Message, since_s: float) -> None:
        self._note_message(rank, Lane.SEND, since_s, message, peer=receiver)
        receiver.arrived.add(message)
        if receiver.awaited == message:
            receiver.awaited = None
            self._take(receiver, message)
            self._go_on(receiver)

    def _take(self, rank: _Rank, message: _Message) -> None:
        source = self._ranks[message[0]]
        rank.arrived.remove(message)
        self._link(source, rank).receive()
        self._note_message(rank, Lane.RECEIVE, rank.since_s, message, peer=source)

    def _link(self, source: _Rank, destination: _Rank) -> Link:
        return self._links[self._devices[source.index], self._devices[destination.index]]

    def _note_message(
        self, rank: _Rank, lane: Lane, since_s: float, message: _Message, *, peer: _Rank
    ) -> None:
        self.spans.append(
            Span(
                rank=rank.index,
                lane=lane,
                name=lane.value,
                start_s=since_s,
                end_s=self._queue.now_s,
                step=0,
                stage=rank.index - rank.first,
                microbatch=message[2],
                peer=peer.index,
                num_bytes=int(self._job.activation_bytes),
            )
        )

    def _leave(self, index: int, name: str) -> None:
        rank = self._ranks[index]
        self._note(rank, Lane.REDUCE, name, since_s=rank.since_s, until_s=self._queue.now_s)
        self._go_on(rank)

    def _note(
        self,
        rank: _Rank,
        lane: Lane,
        name: str,
        *,
        until_s: float,
        since_s: float,
        microbatch: int | None = None,
    ) -> None:
        self.spans.append(
            Span(
                rank=rank.index,
                lane=lane,
                name=name,
                start_s=since_s,
                end_s=until_s,
                step=0,
                stage=rank.index - rank.first,
                microbatch=microbatch,
            )
        )
