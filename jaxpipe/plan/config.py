"""The section `plan` of a configuration."""

from dataclasses import dataclass

from jaxpipe.collective import AllReduceKind
from jaxpipe.schedule import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """The part of a plan that its user decides.

    `cluster` is a name in the catalogue or a TOML file; `devices` names those that are used, the
    first by rank 0; left out, it is all, as listed. `microbatch` is in samples; `cut` (layers of
    each stage) and `warmup` (forwards of each stage before its first backward) are chosen where
    they are left out. Of the `stages` of the whole pipeline each rank holds `chunks`. The CSV in
    `schedule_file` takes the place of `schedule`. `all_reduce` says how gradients are summed;
    left out, it is the fastest over the cluster's links, simulated. A `file` that `jaxpipe plan`
    wrote decides all but the cluster.
    """

    file: str | None = None
    cluster: str = "two-region"
    devices: tuple[str, ...] = ()
    stages: int = 2
    replicas: int = 2
    microbatch: int = 1
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    cut: tuple[int, ...] | None = None
    warmup: tuple[int, ...] | None = None
    chunks: int = 1
    schedule_file: str | None = None
    all_reduce: AllReduceKind | None = None

    def __post_init__(self) -> None:
        for field in ("stages", "replicas", "microbatch", "chunks"):
            if getattr(self, field) < 1:
                raise ValueError(f"`{field}` must be at least 1, is {getattr(self, field)}")
        if self.file is not None and self.devices:
            raise ValueError(
                f"a plan from a file says who is where: `devices` is {', '.join(self.devices)}; "
                "leave it out, or `file`"
            )

    @property
    def num_ranks(self) -> int | None:
        """How many ranks the plan has, as far as the section alone says; None if it does not."""
        if self.file is not None or self.stages % self.chunks:
            return None
        return self.stages // self.chunks * self.replicas
