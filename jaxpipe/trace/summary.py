"""Summary of a trace: the seconds of each rank in each step, and the pipeline bubble.

The bubble is the fraction of the pipeline phase in which ranks do not compute, as in GPipe and, as
"bubble rate", in the work on zero-bubble schedules::

    first stage  │ F0 │ F1 │.........│  B0  │  B1  │     │◄─ pipeline phase ─►│
    last stage   ......│ F0 │  B0  │ F1 │  B1  │....     dots: the bubble

The phase of a replica is the longest of its ranks, from its first forward to its last backward: in
the log of a run, in its trace and in the timetable of a schedule.

Sources: Huang et al., "GPipe", 2019, section 2.3; Qi et al., "Zero Bubble Pipeline Parallelism",
2023, section 5.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
    computes = [lanes[rank, Lane.COMPUTE] for rank in range(num_ranks)]
    ranks = tuple(
        RankSummary(
            rank=rank,
            compute_s=(compute_s := _covered_s(computes[rank])),
            # The host may wait for a message while its device still computes: the device does not.
            receive_s=_covered_s(computes[rank] + lanes[rank, Lane.RECEIVE]) - compute_s,
            reduce_s=_covered_s(lanes[rank, Lane.REDUCE]),
        )
        for rank in range(num_ranks)
    )
    # Ranks are numbered replica by replica: a replica ends where the next one begins.
    firsts = [rank for rank, of_rank in enumerate(computes) if any(s.stage == 0 for s in of_rank)]
    replicas = [range(first, end) for first, end in pairwise([*firsts, num_ranks])]
    phases_s = [max(_phase_s(computes[rank]) for rank in replica) for replica in replicas]
    bubble = None
    if sum(phases_s) > 0:
        bubble = bubble_fraction(
            compute_s=sum(rank.compute_s for rank in ranks),
            pipeline_s=sum(
                len(replica) * phase_s for replica, phase_s in zip(replicas, phases_s, strict=True)
            ),
        )
    return StepSummary(
        step=step,
        pipeline_s=mean(phases_s) if phases_s else 0.0,
        bubble=measured.get(step, bubble),
        ranks=ranks,
    )


def _phase_s(computes: list[Span]) -> float:
    """Return the seconds from the first start to the last end; 0 for no spans."""
    if not computes:
        return 0.0
    return max(span.end_s for span in computes) - min(span.start_s for span in computes)


def _covered_s(spans: Iterable[Span]) -> float:
    """Return the seconds in which at least one of the spans is open: their union."""
    covered_s = 0.0
    end_s = -float("inf")
    for span in sorted(spans, key=lambda other: other.start_s):
        # Only what is not covered yet; 0 for a span inside of an earlier one.
        covered_s += max(0.0, span.end_s - max(span.start_s, end_s))
        end_s = max(end_s, span.end_s)
    return covered_s
