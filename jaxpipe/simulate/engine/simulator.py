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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from jaxpipe.collective import NO_CODING, Coding
from jaxpipe.errors import PlanError
from jaxpipe.network import EventQueue, Link, open_links
from jaxpipe.schedule import Bucket, Instruction, Op, describe, holder
from jaxpipe.simulate.engine.coders import Coders
from jaxpipe.simulate.engine.posted_receives import PostedReceives, Posts, posts_by_position
from jaxpipe.simulate.engine.rendezvous import Rendezvous
from jaxpipe.simulate.engine.running_collectives import (
    BARRIER,
    AllReduceKey,
    CollectiveTracker,
    pairs,
)
from jaxpipe.simulate.engine.step_model import Step, StepModel, steps
from jaxpipe.trace import Lane, Span, Trace, Truth

_Message: TypeAlias = tuple[int, int, int, int, int | None]
"""The sending rank, the phase, the stages of sender and receiver, the microbatch."""


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


def _is_update(step: Step) -> bool:
    return step.instruction is not None and step.instruction.op is Op.UPDATE


class _Rank:
    """The progress of a rank: its position, arrived messages, and the one that it waits for."""

    __slots__ = (
        "arrived",
        "awaited",
        "begun",
        "first",
        "index",
        "position",
        "posts",
        "since_s",
        "steps",
        "waits_for_gradients",
    )

    def __init__(
        self, index: int, *, first: int, steps: tuple[Step, ...], posts: Mapping[int, Posts]
    ) -> None:
        self.index = index
        self.first = first
        self.steps = steps
        # By position: the receives that are posted there, ahead of the computes that need them.
        self.posts = dict(posts)
        self.position = 0
        self.arrived: set[_Message] = set()
        self.awaited: _Message | None = None
        self.since_s = 0.0
        # The stage of each all-reduce in progress, and when it began.
        self.begun: dict[AllReduceKey, tuple[int, float]] = {}
        self.waits_for_gradients = False


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
        self._ranks = [
            _Rank(
                rank,
                first=rank - job.number(rank),
                steps=programs[rank % shared],
                posts=posts[rank],
            )
            for rank in range(job.num_ranks)
        ]
        self._devices = [job.device(rank) for rank in range(job.num_ranks)]
        links = open_links(self._queue, job.cluster, pairs(job), nic_efficiency=job.nic_efficiency)
        self._links = links.get(job.messages, {})
        self._posted = [
            PostedReceives(self._queue, job.messages.eager_bytes) for _ in job.first_ranks
        ]
        self._has_whole_replicas = job.num_ranks == len(job.placement) > 1
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

    def _advance(self, rank: _Rank) -> None:
        """Execute instructions of a rank until it has to wait."""
        while rank.position < len(rank.steps):
            phase, instruction = rank.steps[rank.position]
            for early in rank.posts.pop(rank.position, ()):
                self._post(rank, early, phase)
            rank.waits_for_gradients = self._needs_reductions(rank, instruction)
            if rank.waits_for_gradients:
                return  # the `_leave` of the last of them continues here
            if instruction is None:
                self._join(rank, None, phase)
                return
            if not self._execute(rank, instruction, phase):
                return
            rank.position += 1

    def _execute(self, rank: _Rank, instruction: Instruction, phase: int) -> bool:
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

    def _continue(self, rank: _Rank) -> None:
        rank.position += 1
        self._advance(rank)

    def _end_work(self, rank: _Rank) -> None:
        if self._rendezvous is not None:
            self._rendezvous.end(rank.index)
        self._continue(rank)
        if self._rendezvous is not None:
            self._rendezvous.serve(rank.index)

    def _work(self, rank: _Rank, instruction: Instruction) -> None:
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

    def _send(self, rank: _Rank, instruction: Instruction, phase: int) -> bool:
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

    def _receive(self, rank: _Rank, instruction: Instruction, phase: int) -> bool:
        message = self._message(rank, instruction, phase)
        rank.since_s = self._queue.now_s  # also if the message is there: a span without length
        if message in rank.arrived:
            return self._decode(rank, message)
        rank.awaited = message
        if not self._job.posts_ahead:
            self._post(rank, instruction, phase)
        return False

    def _post(self, rank: _Rank, instruction: Instruction, phase: int) -> None:
        message = self._message(rank, instruction, phase)
        source = message[0]
        pair = (self._devices[rank.index], self._devices[source])
        latency_s = float(self._job.cluster.latency_s[pair])
        num_bytes = self._job.message_bytes(source, rank.index)
        posted = self._posted[self._job.replicas[rank.index]]
        posted.post(message, num_bytes, latency_s=latency_s)

    def _message(self, rank: _Rank, instruction: Instruction, phase: int) -> _Message:
        """Return the message of a receive of a rank."""
        assert instruction.peer is not None, instruction
        source = self._holder(rank, instruction.peer).index
        return (source, phase, instruction.peer, instruction.stage, instruction.microbatch)

    def _arrive(self, rank: _Rank, receiver: _Rank, message: _Message, since_s: float) -> None:
        self._note_message(rank, Lane.SEND, since_s, message, peer=receiver)
        receiver.arrived.add(message)
        if receiver.awaited == message:
            receiver.awaited = None
            if self._decode(receiver, message):
                self._continue(receiver)

    def _decode(self, rank: _Rank, message: _Message) -> bool:
        """Take a message that has arrived; return whether the rank need not decode it first."""
        seconds = self._job.coding_of(message[0], rank.index).decode_s
        # A message that blocks was decoded while both ranks took part in it.
        if seconds == 0 or self._rendezvous is not None:
            self._take(rank, message)
            return True
        self._queue.at(self._queue.now_s + seconds, self._end_decode, rank, message)
        return False

    def _end_decode(self, rank: _Rank, message: _Message) -> None:
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

    def _take(self, rank: _Rank, message: _Message) -> None:
        source = self._ranks[message[0]]
        rank.arrived.remove(message)
        self._link(source, rank).receive()  # frees a buffer, for which the next message may wait
        self._note_message(rank, Lane.RECEIVE, rank.since_s, message, peer=source)

    def _holder(self, rank: _Rank, stage: int) -> _Rank:
        """Return the rank of the same replica that has a stage."""
        size = self._job.pipeline_size(rank.index)
        return self._ranks[rank.first + holder(stage, num_ranks=size)]

    def _link(self, source: _Rank, destination: _Rank) -> Link:
        return self._links[self._devices[source.index], self._devices[destination.index]]

    def _note_message(
        self, rank: _Rank, lane: Lane, since_s: float, message: _Message, *, peer: _Rank
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

    def _join(self, rank: _Rank, instruction: Instruction | None, phase: int) -> bool:
        begun = None if instruction is None else self._begun_by(rank, instruction)
        if instruction is None or begun is None:
            rank.since_s = self._queue.now_s
        else:
            rank.begun[begun] = (instruction.stage, self._queue.now_s)
        self._collectives.join(rank.index, phase, instruction)
        return begun is not None

    def _begun_by(self, rank: _Rank, instruction: Instruction) -> AllReduceKey | None:
        """Return the all-reduce that a rank begins and goes on; None if it waits for its end.

        Ranks of all stages know the norm of what they have summed, unless it has to be clipped:
        their scalars are summed beside the gradients.
        """
        if instruction.bucket is Bucket.STAGE:
            return instruction.segment
        if instruction.bucket is Bucket.TIED:
            return Bucket.TIED
        goes_on = self._has_whole_replicas and any(_is_update(step) for step in rank.steps)
        return Bucket.SCALARS if instruction.bucket is Bucket.SCALARS and goes_on else None

    def _needs_reductions(self, rank: _Rank, instruction: Instruction | None) -> bool:
        """Return whether a rank first waits for all-reduces that it has begun; None is a barrier.

        Its scalars wait for gradients of which they have the norm: that of replica 0, in which the
        first stage counts a tied embedding.
        """
        if instruction is None or instruction.op is Op.UPDATE:
            return bool(rank.begun)
        if instruction.bucket is not Bucket.SCALARS or self._has_whole_replicas or rank.first != 0:
            return False
        return any(begun is not Bucket.TIED or rank.index == 0 for begun in rank.begun)

    def _leave(self, index: int, name: str, key: AllReduceKey | None) -> None:
        rank = self._ranks[index]
        begun = None if key is None else rank.begun.pop(key, None)
        stage, since_s = self._waiting(rank) if begun is None else begun
        now_s = self._queue.now_s
        if name == BARRIER and index == 0:
            self.barriers_s.append(now_s)
        self._note(rank, Lane.REDUCE, name, since_s=since_s, until_s=now_s, stage=stage)
        if begun is None:
            self._continue(rank)
        elif rank.waits_for_gradients and not self._needs_reductions(
            rank, rank.steps[rank.position].instruction
        ):
            self._advance(rank)

    @staticmethod
    def _waiting(rank: _Rank) -> tuple[int | None, float]:
        """Return the stage of the collective for which a rank waits, and since when."""
        instruction = rank.steps[rank.position].instruction
        return None if instruction is None else instruction.stage, rank.since_s

    def _note(
        self,
        rank: _Rank,
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
