"""Summary of a trace: the seconds of each rank in each step, and the pipeline bubble."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from jaxpipe.trace.span import Lane, Span, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """The seconds of one rank in one step.

    `receive_s` is the time in which it waited for messages with nothing else to do, `reduce_s` the
    time of its reductions. Overlapping spans of a lane count once.
    """

    rank: int
    compute_s: float
    receive_s: float
    reduce_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One step: its pipeline, the bubble, and all ranks.

    `pipeline_s` lasts from the start of the first forward to the end of the last backward on any
    rank. `bubble_fraction` is the part of it in which ranks did not compute::

        1 - (sum of compute_s over all ranks of the trace) / (num_ranks * pipeline_s)

    It is None if nothing was computed.
    """

    step: int
    pipeline_s: float
    bubble_fraction: float | None
    ranks: tuple[RankSummary, ...]


def summarise(trace: Trace) -> tuple[StepSummary, ...]:
    """Return a summary of each step in the trace, first step first.

    >>> from jaxpipe.trace.span import Truth
    >>> def compute(rank: int, start_s: float, end_s: float) -> Span:
    ...     return Span(
    ...         rank=rank, lane=Lane.COMPUTE, name="forward", start_s=start_s, end_s=end_s, step=0,
    ...         stage=rank,
    ...     )
    >>> spans = (compute(0, 0.0, 3.0), compute(1, 3.0, 4.0))
    >>> trace = Trace(truth=Truth.SIMULATED, rank_names=("a", "b"), spans=spans)
    >>> [step.bubble_fraction for step in summarise(trace)]
    [0.5]
    """
    steps: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        steps[span.step].append(span)
    return tuple(
        _summarise_step(step, steps[step], num_ranks=len(trace.rank_names))
        for step in sorted(steps)
    )


def _summarise_step(step: int, spans: list[Span], *, num_ranks: int) -> StepSummary:
    lanes: dict[tuple[int, Lane], list[Span]] = defaultdict(list)
    for span in spans:
        lanes[span.rank, span.lane].append(span)
    ranks = tuple(
        RankSummary(
            rank=rank,
            compute_s=_covered_s(lanes[rank, Lane.COMPUTE]),
            receive_s=_covered_s(lanes[rank, Lane.RECEIVE]),
            reduce_s=_covered_s(lanes[rank, Lane.REDUCE]),
        )
        for rank in range(num_ranks)
    )
    computes = [span for span in spans if span.lane is Lane.COMPUTE]
    pipeline_s = (
        max(each.end_s for each in computes) - min(each.start_s for each in computes)
        if computes
        else 0.0
    )
    busy_s = sum(rank.compute_s for rank in ranks)
    return StepSummary(
        step=step,
        pipeline_s=pipeline_s,
        bubble_fraction=1.0 - busy_s / (num_ranks * pipeline_s) if pipeline_s > 0 else None,
        ranks=ranks,
    )


def _covered_s(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of the spans is open: their union."""
    covered_s = 0.0
    end_s = -float("inf")
    for span in sorted(spans, key=lambda each: each.start_s):
        # Only what is not covered yet; 0 for a span inside of an earlier one.
        covered_s += max(0.0, span.end_s - max(span.start_s, end_s))
        end_s = max(end_s, span.end_s)
    return covered_s
