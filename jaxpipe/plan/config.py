"""The section `[plan]` of a configuration."""

from dataclasses import dataclass

from jaxpipe.collective import AllReduceKind
from jaxpipe.schedule import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """The part of a plan that its user decides.

    `cluster` is a name in the catalogue or a TOML file. `devices` names the devices of the ranks in
    their order, by default all as listed. `microbatch` is in samples. `cut` (layers of each stage)
    and `warmup` (forwards of each stage before its first backward) have computed defaults. Each
    rank holds `chunks` of the `stages` of the pipeline. The CSV file `schedule_file` replaces
    `schedule`. `all_reduce` is the algorithm for gradients, by default the fastest one over the
    links of the cluster, simulated. A plan `file` by `jaxpipe plan` decides all but the cluster.
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
                f"a plan file has its own placement: `devices` is {', '.join(self.devices)}; "
                "remove it, or `file`"
            )

    @property
    def num_ranks(self) -> int | None:
        """The number of ranks, if the section alone decides it; else None."""
        if self.file is not None or self.stages % self.chunks:
            return None
        return self.stages // self.chunks * self.replicas
