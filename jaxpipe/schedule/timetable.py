"""The ideal timetable of a schedule: every compute as soon as possible, messages in no time."""

import math
from dataclasses import dataclass

from jaxpipe.errors import PlanError
from jaxpipe.schedule.describe import refusal
from jaxpipe.schedule.flow import inputs
from jaxpipe.schedule.instruction import Instruction, Op, Program, Schedule
from jaxpipe.schedule.size import check_size


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedInstruction:
    """When an instruction runs, in seconds since the first one started."""

    instruction: Instruction
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """When each stage computes what: one program of timed instructions to a stage."""

    programs: tuple[tuple[TimedInstruction, ...], ...]

    @property
    def makespan_s(self) -> float:
        """How long the schedule takes."""
        return max((program[-1].end_s for program in self.programs if program), default=0.0)

    @property
    def bubble_fraction(self) -> float:
        """The part of the stages' time in which they compute nothing.

        That is 1 - busy / (num_stages * makespan).
        """
        busy_s = sum(timed.end_s - timed.start_s for program in self.programs for timed in program)
        return 1.0 - busy_s / (len(self.programs) * self.makespan_s)


def timetable(
    schedule: Schedule, *, forward_s: tuple[float, ...], backward_s: tuple[float, ...]
) -> Timetable:
    """Return the times at which the computes of `schedule` run when messages take no time.

    `forward_s[s]` and `backward_s[s]` are the seconds of one microbatch on stage s. Instructions
    other than forwards and backwards take no time and are left out. No execution of the same
    programs on the same devices is faster: this is the bound that simulations and measurements are
    held against.

    >>> from jaxpipe.schedule.gpipe import gpipe
    >>> ideal = timetable(
    ...     gpipe(num_stages=2, num_microbatches=3), forward_s=(1.0, 1.0), backward_s=(2.0, 2.0)
    ... )
    >>> ideal.makespan_s, ideal.bubble_fraction
    (12.0, 0.25)

    Raises:
        PlanError: nothing is computed, a duration is missing, superfluous or not positive, or the
            programs wait for each other.
    """
    num_stages = len(schedule)
    programs = tuple(tuple(each for each in program if each.is_compute) for program in schedule)
    check_size(
        num_stages=num_stages,
        num_microbatches=len({each.microbatch for program in programs for each in program}),
    )
    _check_durations("forward_s", forward_s, num_stages=num_stages)
    _check_durations("backward_s", backward_s, num_stages=num_stages)
    durations = {Op.FORWARD: forward_s, Op.BACKWARD: backward_s}
    ends: dict[Instruction, float] = {}
    rows: list[list[TimedInstruction]] = [[] for _ in programs]
    num_ends_before = -1
    while num_ends_before < len(ends):
        num_ends_before = len(ends)
        for row, program in zip(rows, programs, strict=True):
            _advance(row, program, ends=ends, durations=durations)
    for stage, (row, program) in enumerate(zip(rows, programs, strict=True)):
        if len(row) < len(program):
            raise refusal(
                "a schedule comes to its end",
                stage,
                len(row),
                program[len(row)],
                "waits for ever; move it behind what it consumes",
            )
    return Timetable(programs=tuple(tuple(row) for row in rows))


def _advance(
    row: list[TimedInstruction],
    program: Program,
    *,
    ends: dict[Instruction, float],
    durations: dict[Op, tuple[float, ...]],
) -> None:
    """Add to `row` and `ends` the next instructions of a program, as far as their inputs exist."""
    for instruction in program[len(row) :]:
        needs = inputs(instruction, num_stages=len(durations[Op.FORWARD]))
        if not all(need in ends for need in needs):
            return
        start_s = max((ends[need] for need in needs), default=0.0)
        if row:
            start_s = max(start_s, row[-1].end_s)
        end_s = start_s + durations[instruction.op][instruction.stage]
        row.append(TimedInstruction(instruction=instruction, start_s=start_s, end_s=end_s))
        ends[instruction] = end_s


def _check_durations(field: str, durations: tuple[float, ...], *, num_stages: int) -> None:
    if len(durations) != num_stages:
        raise PlanError(
            f"every stage has a duration: `{field}` has {len(durations)} for {num_stages} stages; "
            "give one to each"
        )
    if not all(0 < seconds < math.inf for seconds in durations):
        raise PlanError(
            f"a duration is positive: `{field}` is {durations}; give finite seconds above zero"
        )
