"""A job: everything that decides how long a step takes, as data.

What a rank has to do in a job: its programs, phase by phase, and where all ranks meet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxpipe.errors import PlanError
from jaxpipe.schedule import Bucket, Instruction, Op, Schedule, count_stages
from jaxpipe.simulate.collective import Collective
from jaxpipe.simulate.engine.message_costs import MessageCosts
from topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Lowered programs that all replicas run, and whether all ranks meet when they are done."""

    schedule: Schedule
    meets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """One training step.

    `placement[replica]` are devices of the cluster, one to a rank of the pipeline; rank r is number
    r % num_pipeline_ranks of replica r // num_pipeline_ranks, and holds `num_chunks` stages. The
    phases run one after the other, without a pause where ranks do not meet.

    `forward_s` and `backward_s` are the seconds of a microbatch on each stage of each replica, all
    stages of the first replica first, so with one chunk by rank; of a split backward the
    backward-weight takes `backward_weight_s`, by default half. `update_s` are those of the
    optimizer for each stage, left out where it takes no time; `activation_bytes` is the size of
    every message between stages.

    `collectives[bucket]` are the collectives, over ranks, that a reduction of the bucket means:
    of `Bucket.STAGE` one to a stage, in their order, of the others disjoint ones; a bucket without
    any takes no time.

    Raises:
        PlanError: the placement, the phases and the durations do not fit each other.
    """

    cluster: Cluster
    placement: tuple[tuple[int, ...], ...]
    phases: tuple[Phase, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...] | None = None
    activation_bytes: float = 0.0
    collectives: Mapping[Bucket, tuple[Collective, ...]] = field(default_factory=dict)
    messages: MessageCosts = field(default_factory=MessageCosts)
    gradients: MessageCosts = field(default_factory=MessageCosts)
    nic_efficiency: float = 1.0
    num_chunks: int = 1
    backward_weight_s: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        devices = [device for row in self.placement for device in row]
        if len(set(devices)) != len(devices) or not set(devices) <= set(range(len(self.cluster))):
            raise PlanError(
                f"each rank has a device of its own: `placement` is {self.placement} on a cluster "
                f"of {len(self.cluster)}; name each device once at most"
            )
        if {len(row) for row in self.placement} != {self.num_pipeline_ranks}:
            raise PlanError(
                "all replicas have the same stages: the rows of `placement` have "
                f"{[len(row) for row in self.placement]} devices; make them equal"
            )
        for phase in self.phases:
            if len(phase.schedule) != self.num_pipeline_ranks:
                raise PlanError(
                    f"every rank has a program: `phases` has a schedule of {len(phase.schedule)} "
                    f"for {self.num_pipeline_ranks} ranks; give one to each"
                )
            if count_stages(phase.schedule) > self.num_stages:
                raise PlanError(
                    f"every rank holds its chunks: `phases` has {count_stages(phase.schedule)} "
                    f"stages, `num_chunks` is {self.num_chunks} on {self.num_pipeline_ranks} "
                    "ranks; give the number of the schedule's"
                )
        self._check_durations()
        if not 0 < self.nic_efficiency <= 1:
            raise PlanError(
                f"a part of a NIC is usable: `nic_efficiency` is {self.nic_efficiency}; "
                "make it above 0 and at most 1"
            )

    def _check_durations(self) -> None:
        num_durations = len(self.placement) * self.num_stages
        for name in ("forward_s", "backward_s", "backward_weight_s", "update_s"):
            seconds = getattr(self, name)
            if seconds is None:
                continue
            least = 0.0 if name == "update_s" else 5e-324  # an optimizer may take no time
            if len(seconds) != num_durations or not all(each >= least for each in seconds):
                raise PlanError(
                    f"every stage takes its time: `{name}` has {len(seconds)} durations for "
                    f"{num_durations} stages of all replicas; give a positive one to each"
                )
        parts = zip(self.backward_weight_s or (), self.backward_s, strict=False)
        if any(part >= whole for part, whole in parts):
            raise PlanError(
                f"a part is less than the whole: `backward_weight_s` is {self.backward_weight_s}, "
                f"`backward_s` {self.backward_s}; leave seconds to each backward-input"
            )

    @property
    def num_pipeline_ranks(self) -> int:
        """How many ranks a pipeline has."""
        return len(self.placement[0])

    @property
    def num_stages(self) -> int:
        """How many stages a pipeline has."""
        return self.num_pipeline_ranks * self.num_chunks

    @property
    def num_ranks(self) -> int:
        """How many ranks run the job."""
        return len(self.placement) * self.num_pipeline_ranks

    def device(self, rank: int) -> int:
        """Return the device on which a rank runs."""
        return self.placement[rank // self.num_pipeline_ranks][rank % self.num_pipeline_ranks]

    def seconds(self, instruction: Instruction, *, rank: int) -> float:
        """Return how long a rank is busy with a compute or an update."""
        place = rank // self.num_pipeline_ranks * self.num_stages + instruction.stage
        whole = self.backward_s[place]
        weight = whole / 2 if self.backward_weight_s is None else self.backward_weight_s[place]
        match instruction.op:
            case Op.FORWARD:
                return self.forward_s[place]
            case Op.BACKWARD:
                return whole
            case Op.BACKWARD_INPUT:
                return whole - weight
            case Op.BACKWARD_WEIGHT:
                return weight
            case _:
                return 0.0 if self.update_s is None else self.update_s[place]

    def meant_by(self, reduction: Instruction) -> Mapping[int, Collective]:
        """Return the collectives that a reduction means, by their position in their bucket."""
        assert reduction.bucket is not None, reduction
        collectives = dict(enumerate(self.collectives.get(reduction.bucket, ())))
        if reduction.bucket is not Bucket.STAGE:
            return collectives
        stage = reduction.stage
        return {stage: collectives[stage]} if stage in collectives else {}


class Step(NamedTuple):
    """An instruction of a phase, or, where there is none, a meeting of all ranks."""

    phase: int
    instruction: Instruction | None


def steps(job: StepModel, number: int) -> tuple[Step, ...]:
    """Return the steps of every rank that has this number in its pipeline.

    A reduction for which the job has no collective, or one in which the rank has no part, is left
    out.
    """
    return tuple(_steps(job, number))


def _steps(job: StepModel, number: int) -> Iterator[Step]:
    for position, phase in enumerate(job.phases):
        for instruction in phase.schedule[number]:
            if instruction.op is not Op.REDUCE or _joins(job, number, instruction):
                yield Step(position, instruction)
        if phase.meets and job.num_ranks > 1:
            yield Step(position, None)


def _joins(job: StepModel, number: int, reduction: Instruction) -> bool:
    return any(
        rank % job.num_pipeline_ranks == number
        for collective in job.meant_by(reduction).values()
        for each in collective
        for rank in (each.source, each.destination)
    )
