"""The schedules that train, by name."""

from enum import StrEnum

from jaxpipe.errors import PlanError
from jaxpipe.schedule.gpipe import gpipe
from jaxpipe.schedule.instruction import Schedule
from jaxpipe.schedule.one_f_one_b import eager_one_f_one_b, one_f_one_b


class ScheduleKind(StrEnum):
    """Which generator orders the forwards and backwards of a step."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    EAGER_ONE_F_ONE_B = "eager-1f1b"


_WITHOUT_WARMUP = {ScheduleKind.GPIPE: gpipe, ScheduleKind.ONE_F_ONE_B: one_f_one_b}


def generate(
    kind: ScheduleKind,
    *,
    num_stages: int,
    num_microbatches: int,
    warmup: tuple[int, ...] | None = None,
) -> Schedule:
    """Return the compute instructions of the schedule named `kind`.

    >>> generate(ScheduleKind.GPIPE, num_stages=1, num_microbatches=1) == gpipe(
    ...     num_stages=1, num_microbatches=1
    ... )
    True

    Raises:
        PlanError: the generator refuses its arguments, or it has no warm-up to set.
    """
    if kind is ScheduleKind.EAGER_ONE_F_ONE_B:
        return eager_one_f_one_b(
            num_stages=num_stages, num_microbatches=num_microbatches, warmup=warmup
        )
    if warmup is not None:
        raise PlanError(
            f"only {ScheduleKind.EAGER_ONE_F_ONE_B} has a warm-up to set: `warmup` is {warmup} and "
            f"`kind` is {kind}; leave out the one or change the other"
        )
    return _WITHOUT_WARMUP[kind](num_stages=num_stages, num_microbatches=num_microbatches)
