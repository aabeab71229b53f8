"""What a user has set of a plan: a search keeps it, and is free in everything else."""

from dataclasses import dataclass, fields

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan import Cut, Plan
from jaxpipe.schedule import ScheduleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The fields of `[plan]` that are set; None is free.

    `num_ranks` are the processes that already run: only plans of as many ranks count. `stages` are
    those of a pipeline, `chunks` of them on each rank. Ranks run on `devices` in this order, and on
    no others; a plan may use fewer.

    Raises:
        PlanError: a number is below 1, or `stages` contradicts `cut`.
    """

    num_ranks: int | None = None
    stages: int | None = None
    replicas: int | None = None
    microbatch: int | None = None
    chunks: int | None = None
    cut: Cut | None = None
    schedule: ScheduleKind | None = None
    warmup: tuple[int, ...] | None = None
    all_reduce: AllReduceKind | None = None
    devices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("num_ranks", "stages", "replicas", "microbatch", "chunks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"`{name}` must be at least 1, not {value}")
        if self.cut is not None and self.stages not in (None, len(self.cut)):
            raise PlanError(
                f"`plan.cut` {list(self.cut)} must have one number for each of `plan.stages` "
                f"({self.stages})"
            )

    @property
    def num_stages(self) -> int | None:
        """The stages of a pipeline, if they or the cut are set."""
        return self.stages if self.cut is None else len(self.cut)

    @property
    def num_chunks(self) -> int:
        """The stages of a rank before a search tries more of them."""
        if self.chunks is not None:
            return self.chunks
        return 2 if self.schedule is not None and self.schedule.facts.takes_chunks else 1

    @property
    def depth(self) -> int | None:
        """The ranks of a pipeline, if what is set decides them."""
        if self.num_stages is not None:
            # At least one: stages that chunks do not divide fit no plan, and the search says so.
            return max(1, self.num_stages // self.num_chunks)
        return None if self.warmup is None else len(self.warmup)

    def keeps(self, plan: Plan) -> bool:
        """Return whether a plan has everything that is set."""
        return all(
            getattr(self, field.name) is None or _KEPT[field.name](self, plan)
            for field in fields(self)
        )


_KEPT = {
    "num_ranks": lambda fixed, plan: plan.num_ranks == fixed.num_ranks,
    "stages": lambda fixed, plan: _all_have(plan, "num_stages", fixed.stages),
    "replicas": lambda fixed, plan: plan.num_replicas == fixed.replicas,
    "microbatch": lambda fixed, plan: _all_have(plan, "microbatch", fixed.microbatch),
    "chunks": lambda fixed, plan: plan.num_chunks == fixed.chunks,
    "cut": lambda fixed, plan: _all_have(plan, "cut", fixed.cut),
    "schedule": lambda fixed, plan: plan.schedule == fixed.schedule,
    "warmup": lambda fixed, plan: _all_have(plan, "warmup", fixed.warmup),
    "all_reduce": lambda fixed, plan: plan.all_reduce is fixed.all_reduce,
    "devices": lambda fixed, plan: _has_devices(plan, fixed.devices or ()),
}
"""Whether a plan keeps each field that is set."""


def _all_have(plan: Plan, name: str, value: object) -> bool:
    return all(getattr(pipeline, name) == value for pipeline in plan.pipelines)


def _has_devices(plan: Plan, devices: tuple[int, ...]) -> bool:
    return tuple(device for group in plan.groups for device in group) == devices[: plan.num_ranks]
