"""Schedules as CSV files: one row per rank, one cell per compute instruction, in order.

They are those that `torch.distributed.pipelining` loads in its format "compute_only"::

    0F0,0F1,0B0,0I1,0W1     rank 0, which holds stage 0
    1F0,1B0,1F1,1I1,1W1     rank 1, which holds stage 1

    1F3          stage 1, forward of microbatch 3
    1B3          its whole backward
    1I3, 1W3     or its backward-input and its backward-weight

Of R ranks, rank r holds the stages r, r + R and so on. Empty cells, empty lines and lines that
start with # are ignored; none is written, since torch refuses comments. Lowering the schedule adds
messages, reductions and updates.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import lines_of, read_text, reason_of
from jaxpipe.schedule.check.check_schedule import check
from jaxpipe.schedule.deadlock import reach
from jaxpipe.schedule.instruction import Instruction, Op, Schedule, backward, forward
from jaxpipe.schedule.lower import lower
from jaxpipe.schedule.virtual_stages import stages_held

_LETTERS = {
    "F": Op.FORWARD,
    "B": Op.BACKWARD,
    "I": Op.BACKWARD_INPUT,
    "W": Op.BACKWARD_WEIGHT,
}
_LETTER_OF = {op: letter for letter, op in _LETTERS.items()}
# Bounded: no schedule has a billion microbatches, and Python refuses to convert 4,300 digits.
_CELL = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_MOST_TEXT = 40
"""Characters of a cell that an error shows."""
_MOST_BYTES = 2**28


def write_schedule(compute: Schedule, path: Path) -> None:
    """Write the compute instructions of a schedule."""
    path.write_text(schedule_text(compute))


def schedule_text(compute: Schedule) -> str:
    """Return the text of a schedule file.

    >>> from jaxpipe.schedule.generators.one_f_one_b import one_f_one_b
    >>> print(schedule_text(one_f_one_b(num_stages=2, num_microbatches=2)), end="")
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    return "\n".join(schedule_rows(compute)) + "\n"


def schedule_rows(compute: Schedule) -> list[str]:
    """Return the row of each rank."""
    return [",".join(map(_text, program)) for program in compute]


def read_schedule(path: Path, *, num_stages: int) -> Schedule:
    """Return the compute instructions in a file, and check that they are one whole training step.

    Each of the file's ranks holds an equal part of the `num_stages`. The check covers that every
    microbatch passes every stage once in each direction, and that no rank deadlocks.

    Raises:
        PlanError: the file cannot be read, or is not such a schedule; names row, column and cell.
    """
    try:
        text = read_text(path, most_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:
        raise PlanError(f"cannot read the schedule {path}: {reason_of(error)}") from error
    return parse_schedule(lines_of(text), source=str(path), num_stages=num_stages)


def parse_schedule(lines: Sequence[str], *, source: str, num_stages: int) -> Schedule:
    """Return the compute instructions in the lines of a file; errors name the `source`.

    Raises:
        PlanError: as for `read_schedule`.
    """
    rows = list(_rows(lines, source))
    if not rows or num_stages < 1 or num_stages % len(rows):
        raise PlanError(
            f"{source} has {len(rows)} rows with cells, and `num_stages` ({num_stages}) must be a "
            "multiple of that: ranks hold an equal part of the stages"
        )
    programs = tuple(
        # A dict keeps the order and, of a repeated instruction, only the last cell.
        {_instruction(cell, rank, num_ranks=len(rows), num_stages=num_stages): cell for cell in row}
        for rank, row in enumerate(rows)
    )
    for row, program in zip(rows, programs, strict=True):
        _check_once(row, program)
    compute = tuple(tuple(program) for program in programs)
    _check_whole(compute, rows, num_stages=num_stages)
    # Before the full check, which names stages: this error names the cell in the file.
    _check_order(compute, rows)
    check(lower(compute, tied=False, num_replicas=1))  # reductions cannot be wrong in a file
    return compute


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A cell that is not empty, and its position; rows and columns count from 1."""

    source: str
    row: int
    column: int
    text: str

    def refusal(self, rule: str, fault: str) -> PlanError:
        """Return the error of this cell: the `rule` that it breaks, and how."""
        position = f"{self.source}, row {self.row}, column {self.column}"
        text = self.text if len(self.text) <= _MOST_TEXT else f"{self.text[:_MOST_TEXT]}..."
        return PlanError(f"{rule}: {position}, `{text}` {fault}")


def _rows(lines: Iterable[str], source: str) -> Iterator[tuple[_Cell, ...]]:
    for row, line in enumerate(lines, start=1):
        cells = tuple(
            _Cell(source=source, row=row, column=column, text=text.strip())
            for column, text in enumerate(line.split(","), start=1)
            if text.strip()
        )
        # A comment may contain commas: its first cell decides.
        if cells and not cells[0].text.startswith("#"):
            yield cells


def _instruction(cell: _Cell, rank: int, *, num_ranks: int, num_stages: int) -> Instruction:
    match = _CELL.fullmatch(cell.text)
    if match is None:
        raise cell.refusal(
            "a cell is an instruction",
            "is none; write the stage, F, B, I or W, and the microbatch, such as 0F3",
        )
    stage, letter, microbatch = match.groups()
    stages = stages_held(rank, num_ranks=num_ranks, num_stages=num_stages)
    if int(stage) not in stages:
        names = ", ".join(map(str, stages))
        raise cell.refusal(f"rank {rank} of {num_ranks} holds stage {names}", "is of another one")
    return Instruction(op=_LETTERS[letter], stage=int(stage), microbatch=int(microbatch))


def _check_once(row: tuple[_Cell, ...], program: Mapping[Instruction, _Cell]) -> None:
    present = set(program.values())
    for cell in row:
        if cell not in present:
            raise cell.refusal("every instruction occurs once", "occurs again; remove it")


def _check_whole(compute: Schedule, rows: list[tuple[_Cell, ...]], *, num_stages: int) -> None:
    """Refuse a schedule in which a microbatch does not pass a stage once in each direction."""
    num_ranks = len(compute)
    # Microbatches count up to the highest: a gap below it is a missing instruction.
    last = max(instruction.microbatch or 0 for program in compute for instruction in program)
    for rank, (program, row) in enumerate(zip(compute, rows, strict=True)):
        present = frozenset(program)
        for cell, instruction in zip(row, program, strict=True):
            if instruction.op is Op.BACKWARD and not present.isdisjoint(_halves(instruction)):
                raise cell.refusal("a backward is whole or split", "is both; remove one of them")
        for stage in stages_held(rank, num_ranks=num_ranks, num_stages=num_stages):
            for lacking in _lacking(present, stage, num_microbatches=last + 1):
                raise PlanError(
                    f"{row[0].source}, row {row[0].row} lacks `{_text(lacking)}`: every microbatch "
                    "passes once each way; add it"
                )


def _check_order(compute: Schedule, rows: list[tuple[_Cell, ...]]) -> None:
    """Refuse a schedule with a deadlock, by a cell of the rank whose order causes it."""
    sizes = tuple(map(len, compute))
    positions = reach(compute)
    if positions == sizes:
        return
    waiting = [rank for rank, position in enumerate(positions) if position < sizes[rank]]
    # The others wait for it; if it takes several, any of them.
    culprit = next((r for r in waiting if reach(compute, unordered=r) == sizes), waiting[0])
    cell = rows[culprit][positions[culprit]]
    raise cell.refusal("a schedule has no deadlock", "never runs; move it")


def _halves(full: Instruction) -> tuple[Instruction, Instruction]:
    return replace(full, op=Op.BACKWARD_INPUT), replace(full, op=Op.BACKWARD_WEIGHT)


def _lacking(
    present: Collection[Instruction], stage: int, *, num_microbatches: int
) -> Iterator[Instruction]:
    for microbatch in range(num_microbatches):
        full = backward(stage, microbatch)
        halves = _halves(full)
        # Half of a split backward demands the other half, not a whole one.
        is_split = any(half in present for half in halves)
        needed = (forward(stage, microbatch), *(halves if is_split else (full,)))
        yield from (cell for cell in needed if cell not in present)


def _text(compute: Instruction) -> str:
    return f"{compute.stage}{_LETTER_OF[compute.op]}{compute.microbatch}"
