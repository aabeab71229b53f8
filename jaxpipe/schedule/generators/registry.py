"""Training schedules by name."""

from enum import StrEnum

from jaxpipe.errors import PlanError
from jaxpipe.schedule.generators.gpipe import gpipe
from jaxpipe.schedule.generators.interleaved import interleaved
from jaxpipe.schedule.generators.one_f_one_b import eager_one_f_one_b, one_f_one_b
from jaxpipe.schedule.generators.zero_bubble import zb_h1, zb_h2
from jaxpipe.schedule.instruction import Schedule


class ScheduleKind(StrEnum):
    """The generators of training schedules."""

    GPIPE = "gpipe"
    """All forwards, then all backwards: keeps every microbatch live."""
    ONE_F_ONE_B = "1f1b"
    """A backward as soon as there is one: the bubble of GPipe, at most one microbatch per stage."""
    EAGER_ONE_F_ONE_B = "eager-1f1b"
    """1F1B with more forwards ahead, which hides messages and costs memory."""
    INTERLEAVED = "interleaved-1f1b"
    """1F1B with `plan.chunks` virtual stages per rank: a smaller bubble, more messages."""
    ZB_H1 = "zb-h1"
    """Zero-bubble H1: split backwards, a third of the bubble, the memory of 1F1B."""
    ZB_H2 = "zb-h2"
    """Zero-bubble H2: split backwards, no bubble inside the step, twice the memory of 1F1B."""


_BY_SIZE_ALONE = {
    ScheduleKind.GPIPE: gpipe,
    ScheduleKind.ONE_F_ONE_B: one_f_one_b,
    ScheduleKind.ZB_H1: zb_h1,
    ScheduleKind.ZB_H2: zb_h2,
}


def generate(
    kind: ScheduleKind,
    *,
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    warmup: tuple[int, ...] | None = None,
) -> Schedule:
    """Return the compute instructions of the schedule named `kind`.

    `num_stages` are those of the whole pipeline; each of its num_stages / num_chunks ranks holds
    `num_chunks` of them.

    >>> generate(ScheduleKind.GPIPE, num_stages=1, num_microbatches=1) == gpipe(
    ...     num_stages=1, num_microbatches=1
    ... )
    True

    Raises:
        PlanError: the generator refuses its arguments, or has no `warmup` or `num_chunks`.
    """
    if num_chunks != 1 and kind is not ScheduleKind.INTERLEAVED:
        raise PlanError(
            f"only {ScheduleKind.INTERLEAVED} has several chunks per rank: `num_chunks` is "
            f"{num_chunks} and `kind` is {kind}; leave out the one or change the other"
        )
    if warmup is not None and kind is not ScheduleKind.EAGER_ONE_F_ONE_B:
        raise PlanError(
            f"only {ScheduleKind.EAGER_ONE_F_ONE_B} has a warm-up to set: `warmup` is {warmup} and "
            f"`kind` is {kind}; leave out the one or change the other"
        )
    match kind:
        case ScheduleKind.EAGER_ONE_F_ONE_B:
            return eager_one_f_one_b(
                num_stages=num_stages, num_microbatches=num_microbatches, warmup=warmup
            )
        case ScheduleKind.INTERLEAVED:
            return interleaved(
                num_stages=num_stages, num_microbatches=num_microbatches, num_chunks=num_chunks
            )
        case _:
            return _BY_SIZE_ALONE[kind](num_stages=num_stages, num_microbatches=num_microbatches)
