"""Step model: the input of the simulator, as data, and the steps of a rank in it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import NamedTuple

from jaxpipe.collective import NO_CODING, BarrierKind, Coding, Collective
from jaxpipe.errors import PlanError
from jaxpipe.network import MessageCosts
from jaxpipe.schedule import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    count_stages,
    stages_held,
)
from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Lowered programs of all replicas; with `meets`, a barrier of all ranks ends the phase.

    Where replicas differ, `schedule` is that of the first, and `others` are those of the rest.
    """

    schedule: Schedule
    meets: bool = False
    others: tuple[Schedule, ...] = ()

    def of(self, replica: int) -> Schedule:
        """Return the programs of a replica."""
        return self.others[replica - 1] if replica and self.others else self.schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """One training step.

    `placement[replica]` are devices of the cluster, one for each rank of the pipeline; ranks are
    numbered replica by replica, and each has `num_chunks` stages. The phases run one after the
    other, without a pause unless there is a barrier.

    `forward_s` and `backward_s` are the seconds of a microbatch on each stage of each replica, all
    stages of the first replica first, so with one chunk by rank; of a split backward the
    backward-weight takes `backward_weight_s`, half by default, and the backward-input
    `backward_input_s`, by default the rest of the backward. `update_s` are the seconds of the
    optimizer for each stage, None if it takes no time; `activation_bytes` is the size of every
    message between stages, or that of each replica, or of each boundary between its stages.
    `coding[replica][boundary]` are the seconds in which a thread of the sender encodes it, one
    message after the other, and for which the receiver's computes wait; none without codecs.

    `collectives[bucket]` are the collectives, over ranks, of a reduction of the bucket: for
    `Bucket.STAGE` one for each segment, in their order, for the others disjoint ones; a bucket
    without any takes no time. `gathers` are the all-gathers of updated parameters, one for each
    segment, where programs gather them. With `blocking` neither rank computes during a message
    between stages; collectives still overlap with compute. With `posts_ahead`, receives are posted
    before the computes that need them (`jaxpipe.schedule.early_receives`); there is one phase then.

    Raises:
        PlanError: the placement, the phases and the durations do not fit each other.
    """

    cluster: Cluster
    placement: tuple[tuple[int, ...], ...]
    phases: tuple[Phase, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...] | None = None
    activation_bytes: float | tuple[float | tuple[float, ...], ...] = 0.0
    coding: tuple[tuple[Coding, ...], ...] = ()
    collectives: Mapping[Bucket, tuple[Collective, ...]] = field(default_factory=dict)
    gathers: tuple[Collective, ...] = ()
    messages: MessageCosts = field(default_factory=MessageCosts)
    gradients: MessageCosts = field(default_factory=MessageCosts)
    nic_efficiency: float = 1.0
    barrier: BarrierKind = BarrierKind.DISSEMINATION
    num_chunks: int = 1
    backward_weight_s: tuple[float, ...] | None = None
    backward_input_s: tuple[float, ...] | None = None
    blocking: bool = False
    posts_ahead: bool = False
    replicas: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The replica of each rank."""
    first_ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The first rank of each replica."""

    def __post_init__(self) -> None:
        sizes = [len(row) for row in self.placement]
        replicas = tuple(replica for replica, size in enumerate(sizes) for _ in range(size))
        object.__setattr__(self, "replicas", replicas)
        object.__setattr__(self, "first_ranks", tuple(accumulate(sizes, initial=0))[:-1])
        devices = [device for row in self.placement for device in row]
        if len(set(devices)) != len(devices) or not set(devices) <= set(range(len(self.cluster))):
            raise PlanError(
                f"`placement` must name each device of the cluster of {len(self.cluster)} once at "
                f"most, not {self.placement}"
            )
        for phase in self.phases:
            self._check_programs(phase)
        self._check_durations()
        if not 0 < self.nic_efficiency <= 1:
            raise PlanError(
                f"`nic_efficiency` must be above 0 and at most 1, not {self.nic_efficiency}"
            )

    def _check_programs(self, phase: Phase) -> None:
        # Schedules are checked once where all replicas have the same.
        alike = not phase.others and len({len(row) for row in self.placement}) == 1
        for replica, row in enumerate(self.placement[:1] if alike else self.placement):
            if len(phase.of(replica)) != len(row):
                raise PlanError(
                    f"`phases` must have a program for each of {len(row)} ranks; a schedule has "
                    f"{len(phase.of(replica))}"
                )
            if count_stages(phase.of(replica)) > len(row) * self.num_chunks:
                raise PlanError(
                    f"`num_chunks` must be that of the schedule: `phases` has "
                    f"{count_stages(phase.of(replica))} stages, `num_chunks` is {self.num_chunks} "
                    f"on {len(row)} ranks"
                )

    def _check_durations(self) -> None:
        num_durations = self.num_ranks * self.num_chunks
        parts = ("backward_weight_s", "backward_input_s")
        for name in ("forward_s", "backward_s", *parts, "update_s"):
            seconds = getattr(self, name)
            if seconds is None:
                continue
            # The smallest float above 0, so that `>=` refuses 0, negative numbers and NaN.
            least = 0.0 if name == "update_s" else 5e-324  # an optimizer may take no time
            if len(seconds) != num_durations or not all(each >= least for each in seconds):
                raise PlanError(
                    f"`{name}` must have a positive duration for each of {num_durations} stages of "
                    f"all replicas; it has {len(seconds)}"
                )
        halves = zip(self.backward_weight_s or (), self.backward_s, strict=False)
        # The rest is the backward-input, if it has no seconds of its own.
        if self.backward_input_s is None and any(half >= whole for half, whole in halves):
            raise PlanError(
                "`backward_weight_s` must be less than `backward_s`, which includes it: "
                f"{self.backward_weight_s} and {self.backward_s}"
            )

    @property
    def num_pipeline_ranks(self) -> int:
        """The number of ranks of every pipeline."""
        (size,) = {len(row) for row in self.placement}
        return size

    @property
    def num_stages(self) -> int:
        """The number of stages of every pipeline."""
        return self.num_pipeline_ranks * self.num_chunks

    @property
    def num_ranks(self) -> int:
        """The number of ranks of all replicas."""
        return len(self.replicas)

    @property
    def has_shared_programs(self) -> bool:
        """Whether the ranks with the same number in their pipelines execute the same program."""
        sizes = {len(row) for row in self.placement}
        return len(sizes) == 1 and not any(phase.others for phase in self.phases)

    @property
    def is_between_barriers(self) -> bool:
        """Whether the step begins and ends with a barrier, and is timed between them."""
        first, last = self.phases[0], self.phases[-1]
        return first.meets and not any(first.schedule) and last.meets

    def device(self, rank: int) -> int:
        """Return the device of a rank."""
        return self.placement[self.replicas[rank]][self.number(rank)]

    def number(self, rank: int) -> int:
        """Return the position of a rank in its pipeline."""
        return rank - self.first_ranks[self.replicas[rank]]

    def pipeline_size(self, rank: int) -> int:
        """Return the number of ranks of the pipeline of a rank."""
        return len(self.placement[self.replicas[rank]])

    def stages(self, rank: int) -> range:
        """Return the stages that a rank holds."""
        size = self.pipeline_size(rank)
        return stages_held(self.number(rank), num_ranks=size, num_stages=size * self.num_chunks)

    def message_bytes(self, rank: int, peer: int) -> float:
        """Return the size of a message between stages of two ranks of a replica, in that order."""
        sizes = self.activation_bytes
        of_replica = sizes[self.replicas[rank]] if isinstance(sizes, tuple) else sizes
        if not isinstance(of_replica, tuple):
            return of_replica
        return of_replica[min(self.number(rank), self.number(peer))]

    def coding_of(self, rank: int, peer: int) -> Coding:
        """Return the seconds of coding of a message between stages of two ranks of a replica."""
        if not self.coding:
            return NO_CODING
        return self.coding[self.replicas[rank]][min(self.number(rank), self.number(peer))]

    @property
    def largest_message_bytes(self) -> float:
        """The size of the largest message between stages."""
        sizes = self.activation_bytes
        each = sizes if isinstance(sizes, tuple) else (sizes,)
        return max(max(one, default=0.0) if isinstance(one, tuple) else one for one in each)

    def seconds(self, instruction: Instruction, *, rank: int) -> float:
        """Return the seconds of a compute or an update on a rank."""
        index = self.first_ranks[self.replicas[rank]] * self.num_chunks + instruction.stage
        whole = self.backward_s[index]
        weight = whole / 2 if self.backward_weight_s is None else self.backward_weight_s[index]
        match instruction.op:
            case Op.FORWARD:
                return self.forward_s[index]
            case Op.BACKWARD:
                return whole
            case Op.BACKWARD_INPUT:
                inputs = self.backward_input_s
                return whole - weight if inputs is None else inputs[index]
            case Op.BACKWARD_WEIGHT:
                return weight
            case _:
                return 0.0 if self.update_s is None else self.update_s[index]

    @property
    def all_collectives(self) -> Iterator[Collective]:
        """The collectives of all reductions, and the all-gathers."""
        return chain(*self.collectives.values(), self.gathers)

    def all_messages(self) -> Iterator[tuple[int, int, float]]:
        """Yield sender, receiver and bytes of each message of a step, both as ranks."""
        for rank in range(self.num_ranks):
            first, size = rank - self.number(rank), self.pipeline_size(rank)
            for phase in self.phases:
                for instruction in phase.of(self.replicas[rank])[self.number(rank)]:
                    if instruction.op is Op.SEND:
                        assert instruction.peer is not None, instruction
                        peer = first + instruction.peer % size
                        yield rank, peer, self.message_bytes(rank, peer)
        for collective in self.all_collectives:
            for message in collective:
                yield message.source, message.destination, message.num_bytes

    def bytes_between_regions(self) -> dict[tuple[str, str], float]:
        """Return the bytes that a step sends from each region to each other."""
        devices = self.cluster.devices
        regions = [devices[self.device(rank)].region for rank in range(self.num_ranks)]
        crossing: defaultdict[tuple[str, str], float] = defaultdict(float)
        for source, destination, num_bytes in self.all_messages():
            if regions[source] != regions[destination]:
                crossing[regions[source], regions[destination]] += num_bytes
        return dict(crossing)

    def meant_by(self, instruction: Instruction) -> Mapping[int, Collective]:
        """Return the collectives of a reduction, or of a gather, by their position in `group`."""
        collectives = dict(enumerate(self.group(instruction)))
        segment = instruction.segment
        if segment is None:
            return collectives
        return {segment: collectives[segment]} if segment in collectives else {}

    def group(self, instruction: Instruction) -> tuple[Collective, ...]:
        """Return the collectives of the bucket of a reduction, or those of all gathers."""
        if instruction.op is Op.GATHER:
            return self.gathers
        assert instruction.bucket is not None, instruction
        return self.collectives.get(instruction.bucket, ())


class Step(NamedTuple):
    """An instruction of a phase; None is a barrier of all ranks."""

    phase: int
    instruction: Instruction | None


def steps(job: StepModel, rank: int) -> tuple[Step, ...]:
    """Return the steps of a rank.

    Reductions and gathers without a collective, or without a part of the rank in it, are left out;
    the gather of a stage is one of each of its segments. Where replicas share programs, so do their
    ranks the steps: all of them join a collective, or none.
    """
    return tuple(_steps(job, rank))


def _steps(job: StepModel, rank: int) -> Iterator[Step]:
    number, replica = job.number(rank), job.replicas[rank]
    for position, phase in enumerate(job.phases):
        program = phase.of(replica)[number]
        for each in program:
            for instruction in _gathers(each, program) if each.op is Op.GATHER else (each,):
                meets = instruction.op in (Op.REDUCE, Op.GATHER)
                if not meets or _joins(job, rank, instruction):
                    yield Step(position, instruction)
        if phase.meets and job.num_ranks > 1:
            yield Step(position, None)


def _gathers(of_stage: Instruction, program: Program) -> list[Instruction]:
    """Return the gathers of the segments of a stage, in their order, as the runtime runs them."""
    own = (each.segment for each in program if each.stage == of_stage.stage)
    numbers = {segment for segment in own if segment is not None}  # those of its reductions
    return [replace(of_stage, segment=segment) for segment in sorted(numbers)]


def _joins(job: StepModel, rank: int, instruction: Instruction) -> bool:
    return any(
        rank in (each.source, each.destination)
        for collective in job.meant_by(instruction).values()
        for each in collective
    )
