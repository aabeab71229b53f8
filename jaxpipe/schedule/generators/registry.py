"""Training schedules by name: each kind carries the facts of its generator."""

from enum import StrEnum
from typing import Self

from jaxpipe.errors import PlanError
from jaxpipe.schedule.generators.gpipe import GPIPE
from jaxpipe.schedule.generators.interleaved import INTERLEAVED
from jaxpipe.schedule.generators.one_f_one_b import EAGER_ONE_F_ONE_B, ONE_F_ONE_B
from jaxpipe.schedule.generators.schedule_facts import ScheduleFacts
from jaxpipe.schedule.generators.zero_bubble import ZB_H1, ZB_H2
from jaxpipe.schedule.instruction import Schedule


class ScheduleKind(StrEnum):
    """The generators of training schedules."""

    facts: ScheduleFacts

    def __new__(cls, name: str, facts: ScheduleFacts) -> Self:
        """Return the member `name`, which is a string and carries its facts."""
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.facts = facts
        return kind

    GPIPE = "gpipe", GPIPE
    """All forwards, then all backwards: keeps every microbatch live."""
    ONE_F_ONE_B = "1f1b", ONE_F_ONE_B
    """A backward as soon as there is one: the bubble of GPipe, at most one microbatch per stage."""
    EAGER_ONE_F_ONE_B = "eager-1f1b", EAGER_ONE_F_ONE_B
    """1F1B with more forwards ahead, which hides messages and costs memory."""
    INTERLEAVED = "interleaved-1f1b", INTERLEAVED
    """1F1B with `plan.chunks` virtual stages per rank: a smaller bubble, more messages."""
    ZB_H1 = "zb-h1", ZB_H1
    """Zero-bubble H1: split backwards, a third of the bubble, the memory of 1F1B."""
    ZB_H2 = "zb-h2", ZB_H2
    """Zero-bubble H2: split backwards, no bubble inside the step, twice the memory of 1F1B."""


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

    >>> from jaxpipe.schedule.generators.gpipe import gpipe
    >>> generate(ScheduleKind.GPIPE, num_stages=1, num_microbatches=1) == gpipe(
    ...     num_stages=1, num_microbatches=1
    ... )
    True

    Raises:
        PlanError: the generator refuses its arguments, or has no `warmup` or `num_chunks`.
    """
    facts, extras = kind.facts, {}
    if facts.takes_chunks:
        extras["num_chunks"] = num_chunks
    elif num_chunks != 1:
        takers = ", ".join(other for other in ScheduleKind if other.facts.takes_chunks)
        raise PlanError(
            f"`num_chunks` must be 1 for the schedule {kind}, not {num_chunks}: only {takers} has "
            "several chunks per rank; leave out the one or change the other"
        )
    if facts.takes_warmup:
        extras["warmup"] = warmup
    elif warmup is not None:
        takers = ", ".join(other for other in ScheduleKind if other.facts.takes_warmup)
        raise PlanError(
            f"`warmup` must be left out for the schedule {kind}, not {warmup}: only {takers} has a "
            "warm-up to set; leave out the one or change the other"
        )
    return facts.generate(num_stages=num_stages, num_microbatches=num_microbatches, **extras)
