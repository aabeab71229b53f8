"""Ideal timetable of a schedule: each compute starts as soon as its inputs and rank allow."""

import math
from dataclasses import dataclass, field

from jaxpipe.errors import PlanError
from jaxpipe.schedule.dataflow import Value, inputs, output
from jaxpipe.schedule.instruction import Instruction, Op, Program, Schedule, refusal
from jaxpipe.schedule.virtual_stages import check_size, count_stages, holder


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedInstruction:
    """The start and end of an instruction, in seconds since the first one started."""

    instruction: Instruction
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """The timed instructions of each rank."""

    programs: tuple[tuple[TimedInstruction, ...], ...]

    @property
    def makespan_s(self) -> float:
        """The seconds from the first start to the last end."""
        # Programs run in order: the last compute of a rank ends last.
        return max((program[-1].end_s for program in self.programs if program), default=0.0)

    @property
    def bubble_fraction(self) -> float:
        """The fraction of the pipeline phase in which ranks do not compute.

        The phase is the longest of a rank, from its first forward to its last backward: in most
        schedules that of the first rank, but not in one made for a last stage that is slow.
        `jaxpipe.trace.summary` defines the bubble of a trace in the same way.
        """
        busy_s = sum(timed.end_s - timed.start_s for program in self.programs for timed in program)
        phase_s = max(program[-1].end_s - program[0].start_s for program in self.programs)
        return 1.0 - busy_s / (len(self.programs) * phase_s)


def timetable(
    schedule: Schedule,
    *,
    forward_s: tuple[float, ...],
    backward_s: tuple[float, ...],
    backward_weight_s: tuple[float, ...] | None = None,
    message_s: float = 0.0,
) -> Timetable:
    """Return the times at which the computes of `schedule` run on links that are never full.

    `forward_s[s]` and `backward_s[s]` are the seconds of one microbatch on stage s. Of a split
    backward, backward-weight takes `backward_weight_s[s]`, by default half, and backward-input the
    rest. A result arrives at another rank `message_s` after it is computed. Instructions other than
    forwards and backwards take no time and are left out. No execution of the same programs on the
    same devices is faster: with `message_s` 0 this is the lower bound for simulations and
    measurements.

    >>> from jaxpipe.schedule.generators.gpipe import gpipe
    >>> ideal = timetable(
    ...     gpipe(num_stages=2, num_microbatches=3), forward_s=(1.0, 1.0), backward_s=(2.0, 2.0)
    ... )
    >>> ideal.makespan_s, ideal.bubble_fraction
    (12.0, 0.25)

    Raises:
        PlanError: nothing is computed, a duration is missing, superfluous or not positive, a
            backward-weight takes as long as its backward, or the programs deadlock.
    """
    num_ranks, num_stages = len(schedule), count_stages(schedule)
    programs = tuple(
        tuple(instruction for instruction in program if instruction.is_compute)
        for program in schedule
    )
    # Without computes there would be no makespan to divide by.
    check_size(
        num_stages=num_ranks,
        num_microbatches=len(
            {instruction.microbatch for program in programs for instruction in program}
        ),
    )
    if backward_weight_s is None:
        backward_weight_s = tuple(seconds / 2 for seconds in backward_s)
    _check_durations("forward_s", forward_s, num_stages=num_stages)
    _check_durations("backward_s", backward_s, num_stages=num_stages)
    _check_durations("backward_weight_s", backward_weight_s, num_stages=num_stages)
    _check_parts(backward_s, backward_weight_s)
    if not 0 <= message_s < math.inf:
        raise PlanError(f"`message_s` ({message_s}) must be finite seconds, not negative")
    run = _Run(
        programs=programs,
        durations=_durations(forward_s, backward_s, backward_weight_s),
        message_s=message_s,
    )
    return Timetable(programs=run.execute())


def _durations(
    forward_s: tuple[float, ...],
    backward_s: tuple[float, ...],
    backward_weight_s: tuple[float, ...],
) -> dict[Op, tuple[float, ...]]:
    parts = zip(backward_s, backward_weight_s, strict=True)
    return {
        Op.FORWARD: forward_s,
        Op.BACKWARD: backward_s,
        Op.BACKWARD_INPUT: tuple(total - weight for total, weight in parts),
        Op.BACKWARD_WEIGHT: backward_weight_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One execution of compute programs, and the time of each result."""

    programs: Schedule
    durations: dict[Op, tuple[float, ...]]
    message_s: float
    made_s: dict[Value, float] = field(default_factory=dict)

    def execute(self) -> tuple[tuple[TimedInstruction, ...], ...]:
        rows: list[list[TimedInstruction]] = [[] for _ in self.programs]
        num_made_before = -1
        # To a fixed point: each sweep lets ranks continue whose inputs an earlier one computed.
        while num_made_before < len(self.made_s):
            num_made_before = len(self.made_s)
            for row, program in zip(rows, self.programs, strict=True):
                self._advance(row, program)
        for row, program in zip(rows, self.programs, strict=True):
            if len(row) < len(program):
                raise refusal(
                    "a schedule has no deadlock",
                    program[len(row)].stage,
                    len(row),
                    program[len(row)],
                    "never runs; move it after what it consumes",
                )
        return tuple(tuple(row) for row in rows)

    def _advance(self, row: list[TimedInstruction], program: Program) -> None:
        """Append the next instructions of a program to `row`, as far as their inputs exist."""
        # Up to the first without its inputs: a rank never overtakes in its own program.
        for instruction in program[len(row) :]:
            needs = inputs(instruction, num_stages=len(self.durations[Op.FORWARD]))
            if not all(need in self.made_s for need in needs):
                return
            free_s = row[-1].end_s if row else 0.0
            start_s = max((self._here_s(need, instruction) for need in needs), default=0.0)
            start_s = max(start_s, free_s)
            end_s = start_s + self.durations[instruction.op][instruction.stage]
            row.append(TimedInstruction(instruction=instruction, start_s=start_s, end_s=end_s))
            self.made_s[output(instruction)] = end_s

    def _here_s(self, value: Value, user: Instruction) -> float:
        """Return when `value` is available at the rank of `user`."""
        num_ranks = len(self.programs)
        is_local = holder(value.stage, num_ranks=num_ranks) == holder(
            user.stage, num_ranks=num_ranks
        )
        return self.made_s[value] + (0.0 if is_local else self.message_s)


def _check_durations(name: str, durations: tuple[float, ...], *, num_stages: int) -> None:
    if len(durations) != num_stages:
        raise PlanError(
            f"`{name}` has {len(durations)} durations for {num_stages} stages; give one for each"
        )
    if not all(0 < seconds < math.inf for seconds in durations):
        raise PlanError(f"`{name}` {durations} must be finite seconds above zero")


def _check_parts(backward_s: tuple[float, ...], backward_weight_s: tuple[float, ...]) -> None:
    if any(part >= total for part, total in zip(backward_weight_s, backward_s, strict=True)):
        raise PlanError(
            f"`backward_weight_s` {backward_weight_s} must be below `backward_s` {backward_s}, "
            "of which it is a part; leave seconds for each backward-input"
        )
