"""Summary of a trace: the seconds of each rank in each step, and the pipeline bubble.

The bubble is the fraction of the pipeline phase in which ranks do not compute, as in GPipe and, as
"bubble rate", in the work on zero-bubble schedules::

    first stage  │ F0 │ F1 │.........│  B0  │  B1  │     │◄─ pipeline phase ─►│
    last stage   ......│ F0 │  B0  │ F1 │  B1  │....     dots: the bubble

The phase of a replica is that of the rank with its first stage, from its first forward to its last
backward: one clock, and with GPipe, 1F1B and interleaved schedules the longest of all ranks.

Sources: Huang et al., "GPipe", 2019, section 2.3; Qi et al., "Zero Bubble Pipeline Parallelism",
2023, section 5.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

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
    """One step: its pipeline phase, the bubble, and all ranks.

    `pipeline_s` is the mean phase of the replicas. `bubble` is None if no rank of a first stage
    computed; it is the figure that the run has logged, if it did.
    """

    step: int
    pipeline_s: float
    bubble: float | None
    ranks: tuple[RankSummary, ...]


def bubble_fraction(*, compute_s: float, pipeline_s: float) -> float:
    """Return the fraction of the pipeline phase in which ranks do not compute.

    `compute_s` are the seconds of forwards and backwards, `pipeline_s` those of the phase of a
    rank's replica, both summed over all ranks.

    >>> bubble_fraction(compute_s=18.0, pipeline_s=24.0)
    0.25
    """
    return 1.0 - compute_s / pipeline_s


def summarise(trace: Trace) -> tuple[StepSummary, ...]:
    """Return a summary of each step in the trace, first step first.

    >>> from jaxpipe.trace.span import Truth
    >>> def compute(rank: int, start_s: float, end_s: float) -> Span:
    ...     return Span(
    ...         rank=rank, lane=Lane.COMPUTE, name="forward", start_s=start_s, end_s=end_s, step=1,
    ...         stage=rank,
    ...     )
    >>> spans = (compute(0, 0.0, 1.0), compute(1, 1.0, 3.0), compute(0, 3.0, 4.0))
    >>> trace = Trace(truth=Truth.SIMULATED, rank_names=("a", "b"), spans=spans)
    >>> [step.bubble for step in summarise(trace)]
    [0.5]
    """
    steps: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        steps[span.step].append(span)
    measured = dict(trace.bubbles)
    return tuple(
        _summarise_step(step, steps[step], measured, num_ranks=len(trace.rank_names))
        for step in sorted(steps)
    )


def _summarise_step(
    step: int, spans: list[Span], measured: Mapping[int, float], *, num_ranks: int
) -> StepSummary:
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
    # By the first rank of each replica.
    phases_s = {
        rank: max(span.end_s for span in computes) - min(span.start_s for span in computes)
        for rank in range(num_ranks)
        for computes in [lanes[rank, Lane.COMPUTE]]
        if any(span.stage == 0 for span in computes)
    }
    bubble = None
    if sum(phases_s.values()) > 0:
        # Ranks are numbered replica by replica: a replica ends where the next one begins.
        ends = (*phases_s, num_ranks)[1:]
        bubble = bubble_fraction(
            compute_s=sum(rank.compute_s for rank in ranks),
            pipeline_s=sum(
                (end - first) * phase_s
                for (first, phase_s), end in zip(phases_s.items(), ends, strict=True)
            ),
        )
    return StepSummary(
        step=step,
        pipeline_s=mean(phases_s.values()) if phases_s else 0.0,
        bubble=measured.get(step, bubble),
        ranks=ranks,
    )


def _covered_s(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of the spans is open: their union."""
    covered_s = 0.0
    end_s = -float("inf")
    for span in sorted(spans, key=lambda other: other.start_s):
        # Only what is not covered yet; 0 for a span inside of an earlier one.
        covered_s += max(0.0, span.end_s - max(span.start_s, end_s))
        end_s = max(end_s, span.end_s)
    return covered_s
