"""Peak memory of a schedule, in microbatches whose residuals a rank keeps at once."""

from jaxpipe.schedule.generators.registry import ScheduleKind
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
    awaited = {(each.stage, each.microbatch) for each in program if each.frees_residuals}
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
    warmup: tuple[int, ...] | None = None,
) -> tuple[int, ...] | None:
    """Return `peak_live` of a named schedule in closed form; None of one that has none.

    A search checks the memory of many plans, whose schedules take long to generate: a rank with one
    stage keeps as many microbatches as it has forwards before its first backward.

    >>> peak_live_of_kind(ScheduleKind.ONE_F_ONE_B, num_stages=4, num_microbatches=3)
    (3, 3, 2, 1)
    """
    behind = [num_stages - stage for stage in range(num_stages)]  # and the stage itself
    match kind:
        case ScheduleKind.GPIPE:
            forwards = [num_microbatches] * num_stages
        case ScheduleKind.ONE_F_ONE_B:
            forwards = behind
        case ScheduleKind.EAGER_ONE_F_ONE_B:
            forwards = list(warmup or (2 * each - 1 for each in behind))
        case _:
            return None
    return tuple(min(num_microbatches, each) for each in forwards)
