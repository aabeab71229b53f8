"""Draw a schedule as text: one row per rank, one column per time slot."""

from jaxpipe.errors import ConfigError
from jaxpipe.schedule.instruction import Instruction, Op, Schedule
from jaxpipe.schedule.timetable import TimedInstruction, timetable
from jaxpipe.schedule.virtual_stages import count_stages

_MARKS = {
    Op.FORWARD: "{} ",
    Op.BACKWARD: "[{}]",
    Op.BACKWARD_INPUT: "<{}>",
    Op.BACKWARD_WEIGHT: "({})",
}
_NAMES = {
    Op.FORWARD: "forward of microbatch 0",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "gradient of the input",
    Op.BACKWARD_WEIGHT: "gradients of the weights",
}


def render(schedule: Schedule, *, num_columns: int = 100) -> str:
    """Return the drawing of a schedule in which every compute takes one slot.

    A forward is the number of its microbatch, a backward the number in brackets, an idle slot a
    dot. Of a split backward, backward-input is the number in angles and backward-weight in
    parentheses; whole backwards in the same drawing take two slots. If ranks hold several chunks,
    the number of the chunk follows that of the microbatch: 3.1 is microbatch 3 of chunk 1.
    Messages, reductions and updates take no slot. A drawing that is wider than `num_columns`
    characters is truncated, and says so.

    >>> from jaxpipe.schedule.generators.one_f_one_b import one_f_one_b
    >>> schedule = one_f_one_b(num_stages=2, num_microbatches=3)
    >>> print(render(schedule))
    stage 0  0  1  . [0] 2 [1] . [2]
    stage 1  .  0 [0] 1 [1] 2 [2] .
    >>> print(render(schedule, num_columns=20))
    stage 0  0  1  . [0]
    stage 1  .  0 [0] 1
    (slots 0 to 3 of 8; 32 columns show all)
    >>> from jaxpipe.schedule.instruction import backward_input, backward_weight, forward
    >>> print(render(((forward(0, 0), backward_input(0, 0), backward_weight(0, 0)),)))
    stage 0  0 <0>(0)

    Raises:
        ConfigError: `num_columns` has no room for one slot.
        PlanError: the schedule is empty or deadlocks.
    """
    num_ranks, num_stages = len(schedule), count_stages(schedule)
    computes = [
        instruction for program in schedule for instruction in program if instruction.is_compute
    ]
    # A whole backward next to split ones is as long as its two halves.
    backward_slots = 2.0 if any(compute.op is Op.BACKWARD_INPUT for compute in computes) else 1.0
    slots = timetable(
        schedule, forward_s=(1.0,) * num_stages, backward_s=(backward_slots,) * num_stages
    )
    chunk_size = None if num_ranks == num_stages else num_ranks
    num_slots = round(slots.makespan_s)
    # A backward is the widest mark.
    cell = max(len(f"[{_number(compute, chunk_size=chunk_size)}]") for compute in computes)
    label = len(f"stage {num_ranks - 1}") + 1
    num_drawn = min(num_slots, (num_columns - label) // cell)
    if num_drawn < 1:
        raise ConfigError(
            f"`num_columns` ({num_columns}) must be at least {label + cell}, room for a slot"
        )
    row_name = "stage" if chunk_size is None else "rank"
    rows = [
        f"{row_name} {rank}".ljust(label)
        + "".join(_cells(program, num_slots=num_slots, width=cell, chunk_size=chunk_size))[
            : cell * num_drawn
        ]
        for rank, program in enumerate(slots.programs)
    ]
    if num_drawn < num_slots:
        rows.append(
            f"(slots 0 to {num_drawn - 1} of {num_slots}; "
            f"{label + cell * num_slots} columns show all)"
        )
    return "\n".join(row.rstrip() for row in rows)


def legend(schedule: Schedule) -> str:
    """Return the meaning of the marks in the drawing of a schedule.

    >>> from jaxpipe.schedule.generators.gpipe import gpipe
    >>> legend(gpipe(num_stages=2, num_microbatches=3))
    '0 forward of microbatch 0, [0] backward, . idle'
    """
    ops = {instruction.op for program in schedule for instruction in program}
    names = [f"{_MARKS[op].format(0).strip()} {name}" for op, name in _NAMES.items() if op in ops]
    chunks = [] if len(schedule) == count_stages(schedule) else ["0.1 microbatch 0 of chunk 1"]
    return ", ".join([*names, ". idle", *chunks])


def _cells(
    program: tuple[TimedInstruction, ...], *, num_slots: int, width: int, chunk_size: int | None
) -> list[str]:
    cells = [". ".rjust(width)] * num_slots
    for timed in program:
        number = _number(timed.instruction, chunk_size=chunk_size)
        # Durations are 1, 2 and half of 2: times are whole, and only their type is rounded.
        start, end = round(timed.start_s), round(timed.end_s)
        drawn = _MARKS[timed.instruction.op].format(number).rjust(width)
        cells[start:end] = [drawn] * (end - start)
    return cells


def _number(compute: Instruction, *, chunk_size: int | None) -> str:
    """Return the number of the microbatch, and of the chunk if ranks hold several."""
    if chunk_size is None:
        return f"{compute.microbatch}"
    return f"{compute.microbatch}.{compute.stage // chunk_size}"
