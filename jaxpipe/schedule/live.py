"""What peaks in memory: the microbatches whose residuals a stage keeps at once."""

from jaxpipe.schedule.instruction import Op, Program, Schedule


def peak_live(schedule: Schedule) -> tuple[int, ...]:
    """Return for each stage the most microbatches that wait for their backward at once.

    A forward without a backward in its program, as in an evaluation, keeps nothing.

    >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
    >>> peak_live(one_f_one_b(num_stages=4, num_microbatches=3))
    (3, 3, 2, 1)
    """
    return tuple(_peak(program) for program in schedule)


def _peak(program: Program) -> int:
    awaited = {each.microbatch for each in program if each.op is Op.BACKWARD}
    live = peak = 0
    for instruction in program:
        if instruction.op is Op.FORWARD and instruction.microbatch in awaited:
            live += 1
            peak = max(peak, live)
        elif instruction.op is Op.BACKWARD:
            live -= 1
    return peak
