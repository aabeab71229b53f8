"""Peak memory of a schedule, in microbatches whose residuals a rank keeps at once."""

from functools import cache

from jaxpipe.schedule.generators.registry import ScheduleKind, generate
from jaxpipe.schedule.generators.schedule_facts import ScheduleSize
from jaxpipe.schedule.instruction import Op, Program, Schedule


def peak_live(schedule: Schedule) -> tuple[int, ...]:
    """Return for each rank the most pairs of stage and microbatch that are live at once.

    A pair lives from its forward to the end of its backward; if that is split, of its
    backward-weight, which still needs the residuals and the results of backward-input. A pair is
    one stage's worth of memory: on a rank with v chunks, a v-th of its layers. A forward without a
    backward in its program, as in an evaluation, keeps nothing.

    >>> from jaxpipe.schedule.generators.one_f_one_b import one_f_one_b
    >>> peak_live(one_f_one_b(num_stages=4, num_microbatches=3))
    (3, 3, 2, 1)
    """
    return tuple(_peak(program) for program in schedule)


def _peak(program: Program) -> int:
    # In an evaluation no forward is awaited by a backward, and nothing is kept.
    awaited = {
        (instruction.stage, instruction.microbatch)
        for instruction in program
        if instruction.frees_residuals
    }
    live = peak = 0
    for instruction in program:
        pair = (instruction.stage, instruction.microbatch)
        if instruction.op is Op.FORWARD and pair in awaited:
            live += 1
            peak = max(peak, live)
        elif instruction.frees_residuals:
            live -= 1
    return peak


def peak_live_of_kind(
    kind: ScheduleKind,
    *,
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    warmup: tuple[int, ...] | None = None,
) -> tuple[int, ...]:
    """Return `peak_live` of a named schedule: in closed form, if its facts have one.

    A search checks the memory of many plans, whose schedules take long to generate.

    >>> peak_live_of_kind(ScheduleKind.ONE_F_ONE_B, num_stages=4, num_microbatches=3)
    (3, 3, 2, 1)
    """
    size = ScheduleSize(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        warmup=warmup,
    )
    if kind.facts.most_live is not None:
        most = num_chunks * num_microbatches
        return tuple(min(most, live) for live in kind.facts.most_live(size))
    return peak_live(
        generate(
            kind,
            num_stages=num_stages,
            num_microbatches=num_microbatches,
            num_chunks=num_chunks,
            warmup=warmup,
        )
    )


@cache
def deepest_first(num_stages: int, *, grows: bool = False) -> tuple[ScheduleKind, ...]:
    """Return the schedules that a closed form of a step knows, those with most live pairs first.

    These are the searched ones with whole backwards and a stage on each rank: of them depth alone
    decides how well messages are hidden, at the price of memory. Those whose memory grows with the
    microbatches come only if `grows`. Of equal ones the first in the registry, the simplest, comes
    first.

    >>> print(*deepest_first(4), "|", *deepest_first(4, grows=True), "|", *deepest_first(1))
    eager-1f1b 1f1b | gpipe eager-1f1b 1f1b | 1f1b eager-1f1b
    """
    few, many = 4 * num_stages, 8 * num_stages
    depths = {
        kind: [
            sum(peak_live_of_kind(kind, num_stages=num_stages, num_microbatches=num))
            for num in (few, many)
        ]
        for kind in ScheduleKind
        if kind.facts.is_searched and not kind.facts.takes_chunks and not kind.facts.splits_backward
    }
    kinds = [kind for kind, (of_few, of_many) in depths.items() if grows or of_few == of_many]
    return tuple(sorted(kinds, key=lambda kind: -depths[kind][1]))
