"""The record of a schedule: what planner, simulator and runtime know of it by its name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jaxpipe.schedule.instruction import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSize:
    """The size of a schedule: stages of the whole pipeline, microbatches of a step.

    Each of num_stages / num_chunks ranks holds `num_chunks` stages; `warmup` has the forwards of
    each stage before its first backward, if they are set.
    """

    num_stages: int
    num_microbatches: int
    num_chunks: int = 1
    warmup: tuple[int, ...] | None = None

    @property
    def num_ranks(self) -> int:
        """The ranks of the pipeline."""
        return self.num_stages // self.num_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFacts:
    """The facts of a schedule; the defaults are those of a generator that is one function.

    `generate` takes `num_stages` and `num_microbatches`, and `num_chunks` or `warmup` if the facts
    say so. `most_live` is the closed form of `peak_live` before it is limited by the number of
    microbatches; None without one, and then the schedule is generated to count. A search considers
    the schedule unless `is_searched` is false.
    """

    generate: Callable[..., Schedule]
    most_live: Callable[[ScheduleSize], Iterable[int]] | None = None
    is_searched: bool = True
    splits_backward: bool = False
    """It has backward-inputs and backward-weights, and takes the seconds of a split backward."""
    takes_warmup: bool = False
    takes_chunks: bool = False
