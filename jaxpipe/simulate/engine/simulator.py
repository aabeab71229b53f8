"""Simulator: ranks execute their programs over the links of a cluster, event by event.

Every rank executes the lowered programs of the runtime, instruction by instruction::

    forward, backward, update       the rank is busy for the seconds of the instruction
    send                            the message is posted to its link; the rank continues
    receive                         the rank waits until the message has arrived; its request lets
                                    the rest of a message follow that was not sent eagerly; with
                                    `StepModel.posts_ahead` it left earlier
    reduce stage, reduce tied       the rank joins a collective and continues
    reduce scalars                  the rank first waits for the gradients of which it contributes
                                    the norm; it joins, and waits for its part of the collective;
                                    with replicas of one rank each it does neither: no norm is
                                    clipped
    update                          the rank first waits for all collectives that it has joined
    gather                          the rank joins the collective of each segment in turn, and waits

Compute and transfers overlap as the programs allow. With `StepModel.blocking` they do not: a
message between stages occupies both of its ranks (`jaxpipe.simulate.engine.rendezvous`), and a send
ends with its arrival. The same step always gives the same trace.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from jaxpipe.collective import NO_CODING, Coding
from jaxpipe.errors import PlanError
from jaxpipe.network import EventQueue, Link, open_links
from jaxpipe.schedule import Instruction, Op, describe, holder
from jaxpipe.simulate.engine.coders import Coders
from jaxpipe.simulate.engine.posted_receives import PostedReceives, posts_by_position
from jaxpipe.simulate.engine.rendezvous import Rendezvous
from jaxpipe.simulate.engine.running_collectives import (
    BARRIER,
    AllReduceKey,
    CollectiveTracker,
    pairs,
)
from jaxpipe.simulate.engine.simulated_rank import Message, SimulatedRank
from jaxpipe.simulate.engine.step_model import StepModel, steps
from jaxpipe.trace import Lane, Span, Trace, Truth


def simulate(job: StepModel) -> Trace:
    """Return the trace of one training step.

    A send lasts from its posting to its arrival, a receive from the moment its rank began to wait.

    Cost: some microseconds for each instruction and message; more where NICs are shared.

    Raises:
        PlanError: the programs deadlock.
    """
    run = _Run(job, keeps_spans=True)
    with _collector_paused():
        run.execute()
    return Trace(
        truth=Truth.SIMULATED,
        rank_names=tuple(
            f"{_stages(job, rank)} on {job.cluster.devices[job.device(rank)].name}"
            for rank in range(job.num_ranks)
        ),
        spans=tuple(run.spans),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnds:
    """When the last rank ends a step, and when rank 0 leaves each of its barriers."""

    last_s: float
    barriers_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The seconds between the first and the last barrier, without two of them `last_s`."""
        return self.barriers_s[-1] - self.barriers_s[0] if len(self.barriers_s) > 1 else self.last_s


def simulate_ends(job: StepModel) -> StepEnds:
    """Return when a step ends, without its trace: for searches, which need no more.

    Cost: about three quarters of `simulate`.

    Raises:
        PlanError: the programs deadlock.
    """
    run = _Run(job, keeps_spans=False)
    with _collector_paused():
        run.execute()
    return StepEnds(last_s=run.last_s, barriers_s=tuple(run.barriers_s))


def _stages(job: StepModel, rank: int) -> str:
    held = job.stages(rank)
    return f"stage{'s' if len(held) > 1 else ''} {' '.join(map(str, held))}"


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: many spans and no cycles would make its scans slow."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Run:
    """One simulation of a step."""

    def __init__(self, job: StepModel, *, keeps_spans: bool) -> None:
        self.spans: list[Span] = []
        self.last_s = 0.0
        self.barriers_s: list[float] = []  # as rank 0 leaves them
        self._keeps_spans = keeps_spans
        self._job = job
        self._queue = EventQueue()
        shared = len(job.placement[0]) if job.has_shared_programs else job.num_ranks
        programs = [steps(job, rank) for rank in range(shared)]
        posts = posts_by_position(job, programs)
        has_whole_replicas = job.num_ranks == len(job.placement) > 1
        self._ranks = [
            SimulatedRank(
                rank,
                first=rank - job.number(rank),
                steps=programs[rank % shared],
                posts=posts[rank],
                holds_all_stages=has_whole_replicas,
            )
            for rank in range(job.num_ranks)
        ]
        self._devices = [job.device(rank) for rank in range(job.num_ranks)]
        links = open_links(self._queue, job.cluster, pairs(job), nic_efficiency=job.nic_efficiency)
        self._links = links.get(job.messages, {})
        self._posted = [
            PostedReceives(self._queue, job.messages.eager_bytes) for _ in job.first_ranks
        ]
        self._encoders = Coders(self._queue)
        self._collectives = CollectiveTracker(
            job, links=links, coders=Coders(self._queue), done=self._leave
        )
        self._rendezvous = Rendezvous(job.num_ranks) if job.blocking else None

    def execute(self) -> None:
        for rank in self._ranks:
            self._advance(rank)
        self._queue.run()
        # A rank that waits has no event of its own: whatever is left now waits forever.
        for rank in self._ranks:
            assert not rank.begun or rank.position < len(rank.steps), rank.begun
            if rank.position < len(rank.steps):
                instruction = rank.steps[rank.position].instruction
                name = "barrier" if instruction is None else describe(instruction)
                raise PlanError(
                    f"programs must not deadlock: rank {rank.index}, position {rank.position}, "
                    f"`{name}` never completes; add the instruction of another rank that it needs"
                )

    def _advance(self, rank: SimulatedRank) -> None:
        """Execute instructions of a rank until it has to wait."""
        while rank.position < len(rank.steps):
            phase, instruction = rank.steps[rank.position]
            for early in rank.posts.pop(rank.position, ()):
                self._post(rank, early, phase)
            if rank.waits_for_gradients:
                return  # the `_leave` of the last of them continues here
            if instruction is None:
                self._join(rank, None, phase)
                return
            if not self._execute(rank, instruction, phase):
                return
            rank.position += 1

    def _execute(self, rank: SimulatedRank, instruction: Instruction, phase: int) -> bool:
        """Begin an instruction; return whether the rank continues at once."""
        match instruction.op:
            case Op.RECEIVE:
                return self._receive(rank, instruction, phase)
            case Op.SEND:
                return self._send(rank, instruction, phase)
            case Op.REDUCE | Op.GATHER:
                return self._join(rank, instruction, phase)
            case _:
                self._work(rank, instruction)
                return False

    def _continue(self, rank: SimulatedRank) -> None:
        rank.position += 1
        self._advance(rank)

    def _end_work(self, rank: SimulatedRank) -> None:
        if self._rendezvous is not None:
            self._rendezvous.end(rank.index)
        self._continue(rank)
        if self._rendezvous is not None:
            self._rendezvous.serve(rank.index)

    def _work(self, rank: SimulatedRank, instruction: Instruction) -> None:
        if self._rendezvous is not None:
            self._rendezvous.begin(rank.index)
        end_s = self._queue.now_s + self._job.seconds(instruction, rank=rank.index)
        self._note(
            rank,
            Lane.UPDATE if instruction.op is Op.UPDATE else Lane.COMPUTE,
            instruction.op,
            since_s=self._queue.now_s,
            until_s=end_s,
            stage=instruction.stage,
            microbatch=instruction.microbatch,
        )
        self._queue.at(end_s, self._end_work, rank)

    def _send(self, rank: SimulatedRank, instruction: Instruction, phase: int) -> bool:
        assert instruction.peer is not None, instruction
        receiver = self._holder(rank, instruction.peer)
        message = (rank.index, phase, instruction.stage, instruction.peer, instruction.microbatch)
        link = self._link(rank, receiver)
        arrive = partial(self._arrive, rank, receiver, message, self._queue.now_s)
        num_bytes = self._job.message_bytes(rank.index, receiver.index)
        coding = self._job.coding_of(rank.index, receiver.index)
        if self._rendezvous is None:
            posted = self._posted[self._job.replicas[rank.index]]
            leave = partial(posted.send, message, link, num_bytes, arrive)
            self._encoders.run(rank.index, coding.encode_s, leave)
            return True

        def done() -> None:
            self._continue(rank)
            arrive()

        # Both ranks take part in the message, so none of it waits for a posted receive.
        move = partial(self._move, link, num_bytes, coding)
        self._rendezvous.offer(rank.index, receiver.index, move, done)
        return False

    def _receive(self, rank: SimulatedRank, instruction: Instruction, phase: int) -> bool:
        message = self._message(rank, instruction, phase)
        rank.since_s = self._queue.now_s  # also if the message is there: a span without length
        if message in rank.arrived:
            return self._decode(rank, message)
        rank.awaited = message
        if not self._job.posts_ahead:
            self._post(rank, instruction, phase)
        return False

    def _post(self, rank: SimulatedRank, instruction: Instruction, phase: int) -> None:
        message = self._message(rank, instruction, phase)
        source = message[0]
        pair = (self._devices[rank.index], self._devices[source])
        latency_s = float(self._job.cluster.latency_s[pair])
        num_bytes = self._job.message_bytes(source, rank.index)
        posted = self._posted[self._job.replicas[rank.index]]
        posted.post(message, num_bytes, latency_s=latency_s)

    def _message(self, rank: SimulatedRank, instruction: Instruction, phase: int) -> Message:
        """Return the message of a receive of a rank."""
        assert instruction.peer is not None, instruction
        source = self._holder(rank, instruction.peer).index
        return (source, phase, instruction.peer, instruction.stage, instruction.microbatch)

    def _arrive(
        self, rank: SimulatedRank, receiver: SimulatedRank, message: Message, since_s: float
    ) -> None:
        self._note_message(rank, Lane.SEND, since_s, message, peer=receiver)
        receiver.arrived.add(message)
        if receiver.awaited == message:
            receiver.awaited = None
            if self._decode(receiver, message):
                self._continue(receiver)

    def _decode(self, rank: SimulatedRank, message: Message) -> bool:
        """Take a message that has arrived; return whether the rank need not decode it first."""
        seconds = self._job.coding_of(message[0], rank.index).decode_s
        # A message that blocks was decoded while both ranks took part in it.
        if seconds == 0 or self._rendezvous is not None:
            self._take(rank, message)
            return True
        self._queue.at(self._queue.now_s + seconds, self._end_decode, rank, message)
        return False

    def _end_decode(self, rank: SimulatedRank, message: Message) -> None:
        self._take(rank, message)
        self._continue(rank)

    def _move(
        self, link: Link, num_bytes: float, coding: Coding, moved: Callable[[], None]
    ) -> None:
        """Encode, send and decode a message while both of its ranks take part in it."""
        if coding == NO_CODING:
            link.send(num_bytes, moved)
            return

        def decode() -> None:
            self._queue.at(self._queue.now_s + coding.decode_s, moved)

        self._queue.at(self._queue.now_s + coding.encode_s, link.send, num_bytes, decode)

    def _take(self, rank: SimulatedRank, message: Message) -> None:
        source = self._ranks[message[0]]
        rank.arrived.remove(message)
        self._link(source, rank).receive()  # frees a buffer, for which the next message may wait
        self._note_message(rank, Lane.RECEIVE, rank.since_s, message, peer=source)

    def _holder(self, rank: SimulatedRank, stage: int) -> SimulatedRank:
        """Return the rank of the same replica that has a stage."""
        size = self._job.pipeline_size(rank.index)
        return self._ranks[rank.first + holder(stage, num_ranks=size)]

    def _link(self, source: SimulatedRank, destination: SimulatedRank) -> Link:
        return self._links[self._devices[source.index], self._devices[destination.index]]

    def _note_message(
        self,
        rank: SimulatedRank,
        lane: Lane,
        since_s: float,
        message: Message,
        *,
        peer: SimulatedRank,
    ) -> None:
        self.last_s = max(self.last_s, self._queue.now_s)
        if not self._keeps_spans:
            return
        self.spans.append(
            Span(
                rank=rank.index,
                lane=lane,
                name=lane.value,
                start_s=since_s,
                end_s=self._queue.now_s,
                step=1,
                stage=message[2] if lane is Lane.SEND else message[3],
                microbatch=message[4],
                peer=peer.index,
                num_bytes=int(self._job.message_bytes(rank.index, peer.index)),
            )
        )

    def _join(self, rank: SimulatedRank, instruction: Instruction | None, phase: int) -> bool:
        begun = None if instruction is None else rank.begins(instruction)
        if instruction is None or begun is None:
            rank.since_s = self._queue.now_s
        else:
            rank.begun[begun] = (instruction.stage, self._queue.now_s)
        self._collectives.join(rank.index, phase, instruction)
        return begun is not None

    def _leave(self, index: int, name: str, key: AllReduceKey | None) -> None:
        rank = self._ranks[index]
        waited = rank.waits_for_gradients
        begun = None if key is None else rank.begun.pop(key, None)
        stage, since_s = self._waiting(rank) if begun is None else begun
        now_s = self._queue.now_s
        if name == BARRIER and index == 0:
            self.barriers_s.append(now_s)
        self._note(rank, Lane.REDUCE, name, since_s=since_s, until_s=now_s, stage=stage)
        if begun is None:
            self._continue(rank)
        elif waited and not rank.waits_for_gradients:
            self._advance(rank)

    @staticmethod
    def _waiting(rank: SimulatedRank) -> tuple[int | None, float]:
        """Return the stage of the collective for which a rank waits, and since when."""
        instruction = rank.steps[rank.position].instruction
        return None if instruction is None else instruction.stage, rank.since_s

    def _note(
        self,
        rank: SimulatedRank,
        lane: Lane,
        name: str,
        *,
        until_s: float,
        since_s: float,
        stage: int | None = None,
        microbatch: int | None = None,
    ) -> None:
        self.last_s = max(self.last_s, until_s)
        if not self._keeps_spans:
            return
        self.spans.append(
            Span(
                rank=rank.index,
                lane=lane,
                name=name,
                start_s=since_s,
                end_s=until_s,
                step=1,
                stage=rank.index - rank.first if stage is None else stage,
                microbatch=microbatch,
            )
        )
