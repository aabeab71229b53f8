"""The section `[plan]` of a configuration."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from jaxpipe.collective import AllReduceKind, CodecKind, CodecLimit
from jaxpipe.ranges import Range, check_ranges
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo.this_machine import THIS_MACHINE

_COUNT = Range(least=1, most=2**31 - 1, why="programs and arrays count in 32 bits")

_COUNTED = Range(least=1, most=2**16, why="ranks and stages are counted one by one")


class Replan(StrEnum):
    """What follows when a link of the plan has become slow."""

    NEVER = "never"
    """Nothing: links are not judged."""
    ASK = "ask"
    """A line that names the link, and one with the step time of a new plan and its command."""
    AUTO = "auto"
    """As `ask`; under `jaxpipe run`, the run also stops and continues with the new plan, if the
    steps that are left save more time than the restart takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """The section `[plan]`: a plan file, or the decisions of its user.

    A field that is not set, or is "free", is free: the planner searches it (`jaxpipe.propose`).
    """

    file: str | None = None
    """Plan file written by `jaxpipe plan`. It overrides all other fields but `cluster`, `codecs`,
    `replan` and those of drift. An empty name is none: so a setting can override that of a file."""
    cluster: str = THIS_MACHINE
    """Name in the catalogue (`jaxpipe topo list`), or path of a cluster file. Default: the cores or
    GPUs of this machine."""
    devices: tuple[str, ...] = ()
    """Names of the devices that ranks 0, 1, ... use. Default: chosen by the planner; where `stages`
    and `replicas` are set, those of the cluster, in its order."""
    stages: Annotated[int | None, _COUNTED] = None
    """Stages of the pipeline [stages]. Default: searched."""
    replicas: Annotated[int | None, _COUNTED] = None
    """Replicas of the pipeline: the degree of data parallelism [replicas]. Default: searched."""
    microbatch: Annotated[int | None, _COUNT] = None
    """Size of a microbatch [samples]. Default: searched."""
    schedule: ScheduleKind | None = None
    """Pipeline schedule. Default: searched."""
    cut: tuple[int, ...] | None = None
    """Partition of the model: layers of each stage [layers]. Default: the one whose slowest stage
    is fastest, with the embedding and the head."""
    cuts: tuple[tuple[int, ...], ...] | None = None
    """Partition of each replica, where they differ: layers of each of its stages [layers]. It takes
    the place of `stages`, `replicas` and `cut`."""
    shares: tuple[int, ...] | None = None
    """Share of each replica in the batch [samples]. Default: equal shares."""
    warmup: tuple[int, ...] | None = None
    """Forwards of each stage before its first backward [microbatches]; for `eager-1f1b`. Default:
    chosen by the schedule."""
    chunks: Annotated[int | None, _COUNTED] = None
    """Virtual stages per rank, for `interleaved-1f1b` [stages]; divides `stages`. Default: searched
    with the schedule; 1 where `schedule` is set."""
    schedule_file: str | None = None
    """CSV file with one row of instructions per rank; takes the place of `schedule`."""
    all_reduce: AllReduceKind | None = None
    """Algorithm of the gradient all-reduce. Default: the fastest over the cluster's links,
    simulated."""
    search_s: Annotated[float, Range(above=0, most=1e9)] = 2.0
    """Seconds of the search for the fields that are not set, which `jaxpipe train` makes before it
    starts [s]. `jaxpipe plan` searches longer."""
    boundaries: tuple[CodecKind, ...] | None = None
    """Codec of each boundary between stages, in their order, in place of `comm.boundary`; numbers
    that a boundary keeps are in `model.bottlenecks`. Default: `comm.boundary` at all."""
    codecs: CodecLimit = CodecLimit.NONE
    """Codecs among which planning chooses: `jaxpipe plan`, and a new plan for links that are slow
    (`replan`), for its boundaries between stages."""
    replan: Replan = Replan.ASK
    """What follows when a link between hosts is slower than planned; needs `trace.links`."""
    drift_factor: Annotated[float, Range(above=1, most=1e9)] = 2.0
    """Factor of the planned seconds from which on a link is slow."""
    drift_steps: Annotated[int, _COUNT] = 20
    """Steps in a row that a link must be slow before it is reported [steps]."""

    def __post_init__(self) -> None:
        if self.file == "":
            object.__setattr__(self, "file", None)
        check_ranges(self)
        for field in ("cut", "cuts", "shares", "warmup", "boundaries"):
            if getattr(self, field) == ():
                raise ValueError(f"`{field}` must not be empty; leave it out to have it searched")
        self._check_number_of_boundaries()
        if self.boundaries is not None and self.codecs is not CodecLimit.NONE:
            raise ValueError(
                f"`boundaries` ({', '.join(self.boundaries)}) must be left out with `codecs` "
                f"({self.codecs}), within which planning chooses them; remove one of the two"
            )

    def _check_number_of_boundaries(self) -> None:
        stages = self.stages if self.cut is None else len(self.cut)
        if self.boundaries is None or stages is None or len(self.boundaries) == stages - 1:
            return
        raise ValueError(
            f"`boundaries` ({', '.join(self.boundaries)}) must have a codec for each of the "
            f"{stages - 1} boundaries of {stages} stages, not {len(self.boundaries)}; add or "
            "remove some, or leave it out"
        )

    @property
    def has_unlike_replicas(self) -> bool:
        """Whether replicas have their own partitions, or their own shares of the batch."""
        return self.cuts is not None or self.shares is not None

    @property
    def is_decided(self) -> bool:
        """Whether shape, microbatch and schedule are set, so that nothing is left to search."""
        has_schedule = self.schedule is not None or self.schedule_file is not None
        return self.has_shape and self.microbatch is not None and has_schedule

    @property
    def has_shape(self) -> bool:
        """Whether the stages of all replicas are set."""
        return self.cuts is not None or (self.stages is not None and self.replicas is not None)

    @property
    def num_stages(self) -> int | None:
        """The stages of a pipeline, if they, or the codecs between them, are set."""
        if self.stages is None and self.boundaries is not None:
            return len(self.boundaries) + 1
        return self.stages

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks, if the section alone decides it; else None."""
        if self.file is not None or not self.is_decided:
            return None
        sizes = [len(cut) for cut in self.cuts or ()]
        sizes = sizes or [self.stages or 1] * (self.replicas or 1)
        chunks = self.chunks or 1
        return None if any(size % chunks for size in sizes) else sum(sizes) // chunks
