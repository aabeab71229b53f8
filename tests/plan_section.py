"""A section `[plan]` that decides everything, for tests that search nothing."""

from typing import Any

from jaxpipe.plan import PlanConfig
from jaxpipe.schedule import ScheduleKind


def decided(**fields: Any) -> PlanConfig:
    """Return 2 stages x 2 replicas with 1F1B, changed by fields."""
    base = {
        "cluster": "two-region",
        "stages": 2,
        "replicas": 2,
        "microbatch": 1,
        "schedule": ScheduleKind.ONE_F_ONE_B,
    }
    return PlanConfig(**{**base, **fields})
