"""The section `[plan]` of a configuration."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from jaxpipe.collective import AllReduceKind, CodecLimit
from jaxpipe.schedule import ScheduleKind


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
    """The section `[plan]`: a plan file, or what its user decides of a plan."""

    file: str | None = None
    """Plan file written by `jaxpipe plan`. It overrides all other fields but `cluster`, `codecs`,
    `replan` and those of drift. An empty name is none: so a setting can override that of a file."""
    cluster: str = "two-region"
    """Name in the catalogue (`jaxpipe topo list`), or path of a cluster file."""
    devices: tuple[str, ...] = ()
    """Names of the devices that ranks 0, 1, ... use. Default: all, in the order of the cluster."""
    stages: int = 2
    """Stages of the pipeline [stages]."""
    replicas: int = 2
    """Replicas of the pipeline: the degree of data parallelism [replicas]."""
    microbatch: int = 1
    """Size of a microbatch [samples]."""
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    """Pipeline schedule."""
    cut: tuple[int, ...] | None = None
    """Partition of the model: layers of each stage [layers]. Default: as even as possible."""
    cuts: tuple[tuple[int, ...], ...] | None = None
    """Partition of each replica, where they differ: layers of each of its stages [layers]. It takes
    the place of `stages`, `replicas` and `cut`."""
    shares: tuple[int, ...] | None = None
    """Share of each replica in the batch [samples]. Default: equal shares."""
    warmup: tuple[int, ...] | None = None
    """Forwards of each stage before its first backward [microbatches]; for `eager-1f1b`. Default:
    chosen by the schedule."""
    chunks: int = 1
    """Virtual stages per rank, for `interleaved-1f1b` [stages]; divides `stages`."""
    schedule_file: str | None = None
    """CSV file with one row of instructions per rank; takes the place of `schedule`."""
    all_reduce: AllReduceKind | None = None
    """Algorithm of the gradient all-reduce. Default: the fastest over the cluster's links,
    simulated."""
    codecs: CodecLimit = CodecLimit.NONE
    """Codecs among which planning chooses: `jaxpipe plan --config` without `--codecs`, and a new
    plan for links that have become slow (`replan`), for its boundaries between stages."""
    replan: Replan = Replan.ASK
    """What follows when a link between hosts is slower than planned; needs `trace.links`."""
    drift_factor: float = 2.0
    """Factor of the planned seconds from which on a link is slow."""
    drift_steps: int = 20
    """Steps in a row that a link must be slow before it is reported [steps]."""

    def __post_init__(self) -> None:
        if self.file == "":
            object.__setattr__(self, "file", None)
        for field in ("stages", "replicas", "microbatch", "chunks", "drift_steps"):
            if getattr(self, field) < 1:
                raise ValueError(f"`{field}` must be at least 1, is {getattr(self, field)}")
        if not 1 < self.drift_factor < inf:
            raise ValueError(
                f"`drift_factor` must be above 1 and finite, is {self.drift_factor}; or set "
                f"`replan` to {Replan.NEVER}"
            )

    @property
    def has_unlike_replicas(self) -> bool:
        """Whether replicas have their own partitions, or their own shares of the batch."""
        return self.cuts is not None or self.shares is not None

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks, if the section alone decides it; else None."""
        sizes = [len(cut) for cut in self.cuts or ()] or [self.stages] * self.replicas
        if self.file is not None or any(size % self.chunks for size in sizes):
            return None
        return sum(size // self.chunks for size in sizes)
