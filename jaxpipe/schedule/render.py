"""Draw a schedule as text: a row to a stage, a column to a slot of time."""

from jaxpipe.errors import ConfigError
from jaxpipe.schedule.instruction import Op, Schedule
from jaxpipe.schedule.timetable import TimedInstruction, timetable


def render(schedule: Schedule, *, num_columns: int = 100) -> str:
    """Return the drawing of a schedule in which every forward and backward takes one slot.

    A forward is the number of its microbatch, a backward the number in brackets, an idle slot a
    dot. Messages, reductions and updates take no slot. A drawing that is wider than `num_columns`
    characters is cut, and says so.

    >>> from jaxpipe.schedule.one_f_one_b import one_f_one_b
    >>> schedule = one_f_one_b(num_stages=2, num_microbatches=3)
    >>> print(render(schedule))
    stage 0  0  1  . [0] 2 [1] . [2]
    stage 1  .  0 [0] 1 [1] 2 [2] .
    >>> print(render(schedule, num_columns=20))
    stage 0  0  1  . [0]
    stage 1  .  0 [0] 1
    (slots 0 to 3 of 8; 32 columns show all)

    Raises:
        ConfigError: `num_columns` has no room for one slot.
        PlanError: the schedule is empty or waits for itself.
    """
    num_stages = len(schedule)
    slots = timetable(schedule, forward_s=(1.0,) * num_stages, backward_s=(1.0,) * num_stages)
    num_slots = round(slots.makespan_s)
    microbatches = [each.microbatch for program in schedule for each in program]
    cell = max(len(f"[{each}]") for each in microbatches if each is not None)
    label = len(f"stage {num_stages - 1}") + 1
    num_drawn = min(num_slots, (num_columns - label) // cell)
    if num_drawn < 1:
        raise ConfigError(
            f"a drawing has room for a slot: `num_columns` is {num_columns}; "
            f"make it at least {label + cell}"
        )
    rows = [
        f"stage {stage}".ljust(label) + _row(program, num_drawn=num_drawn, width=cell)
        for stage, program in enumerate(slots.programs)
    ]
    if num_drawn < num_slots:
        rows.append(
            f"(slots 0 to {num_drawn - 1} of {num_slots}; "
            f"{label + cell * num_slots} columns show all)"
        )
    return "\n".join(row.rstrip() for row in rows)


def _row(program: tuple[TimedInstruction, ...], *, num_drawn: int, width: int) -> str:
    cells = [". ".rjust(width)] * num_drawn
    for timed in program:
        slot = round(timed.start_s)
        if slot < num_drawn:
            microbatch = timed.instruction.microbatch
            is_backward = timed.instruction.op is Op.BACKWARD
            cells[slot] = (f"[{microbatch}]" if is_backward else f"{microbatch} ").rjust(width)
    return "".join(cells)
