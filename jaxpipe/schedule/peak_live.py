"""Peak memory of a schedule, in microbatches whose residuals a rank keeps at once."""

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
