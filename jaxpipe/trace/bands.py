"""The rows of a timeline: the ranks of each stage next to each other, and a choice of them.

::

              rank 0  │ ...         with several replicas the ranks of a stage
    stage 0   rank 2  │ ...         are one group; a gap separates the groups
              ────────┼────
              rank 1  │ ...
    stage 1   rank 3  │ ...
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from jaxpipe.errors import ConfigError, printable
from jaxpipe.trace.span import Trace

_GAP: Final = 0.4
_LONGEST_NAME: Final = 28
_FEW: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Neighbouring rows of the same stages, from `top` to `bottom`, in rows."""

    label: str
    top: float
    bottom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Where each drawn rank has its row: `tops` in rows, the first at 0; `labels` by rank.

    `groups` is empty where each stage has a single rank: the labels then name the stage.
    """

    tops: Mapping[int, float]
    labels: Mapping[int, str]
    groups: tuple[RowGroup, ...]
    height: float


def bands_of(trace: Trace, *, ranks: Sequence[int] | None = None) -> Bands:
    """Return the rows of these ranks of a trace, by default of all.

    >>> from jaxpipe.trace.span import Lane, Span, Truth
    >>> spans = tuple(
    ...     Span(rank=rank, lane=Lane.UPDATE, name="update", start_s=0.0, end_s=1.0, step=1,
    ...          stage=rank % 2)
    ...     for rank in range(4)
    ... )
    >>> bands = bands_of(Trace(truth=Truth.MEASURED, rank_names=("on a",) * 4, spans=spans))
    >>> list(bands.tops), [group.label for group in bands.groups]
    ([0, 2, 1, 3], ['stage 0', 'stage 1'])
    """
    stages = stages_of(trace)
    drawn = sorted(
        range(len(trace.rank_names)) if ranks is None else ranks,
        key=lambda rank: (stages[rank], rank),
    )
    is_grouped = len({stages[rank] for rank in drawn}) < len(drawn)
    tops: dict[int, float] = {}
    groups: list[RowGroup] = []
    top = 0.0
    for stages_shared, members in groupby(drawn, key=lambda rank: stages[rank]):
        top += _GAP if is_grouped and tops else 0.0
        begin = top
        for rank in members:
            tops[rank], top = top, top + 1
        groups.append(RowGroup(label=_stage_label(stages_shared), top=begin, bottom=top))
    return Bands(
        tops=tops,
        labels={
            rank: f"rank {rank}" if is_grouped else f"rank {rank} · {_stage_label(stages[rank])}"
            for rank in drawn
        },
        groups=tuple(groups) if is_grouped else (),
        height=top,
    )


def device_label(trace: Trace, rank: int) -> str:
    """Return the device of a rank, as its name ends; its rank and its stage have labels."""
    name = printable(trace.rank_names[rank].rpartition(" on ")[2])
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def stages_of(trace: Trace) -> tuple[tuple[int, ...], ...]:
    """Return the stages that each rank has spans of, in order."""
    stages: defaultdict[int, set[int]] = defaultdict(set)
    for span in trace.spans:
        stages[span.rank].add(span.stage)
    return tuple(tuple(sorted(stages[rank])) for rank in range(len(trace.rank_names)))


def chosen_ranks(
    trace: Trace, *, ranks: str | None = None, stages: str | None = None
) -> tuple[int, ...]:
    """Return the ranks that are in a list such as `0-7,12` and hold one of these stages.

    None chooses all.

    Raises:
        ConfigError: a list is none, the trace has no such rank or stage, or no rank is both.
    """
    stages_by_rank = stages_of(trace)
    of_stages = {stage for stages_of_rank in stages_by_rank for stage in stages_of_rank}
    wanted_ranks = _chosen("--ranks", ranks, frozenset(range(len(stages_by_rank))))
    wanted_stages = _chosen("--stages", stages, frozenset(of_stages))
    ranks_drawn = tuple(
        rank
        for rank, of_rank in enumerate(stages_by_rank)
        # A rank without spans has no stage: only a choice of stages leaves it out.
        if rank in wanted_ranks and (stages is None or not wanted_stages.isdisjoint(of_rank))
    )
    if not ranks_drawn:
        raise ConfigError(
            f"`--ranks` ({ranks!r:.80}) and `--stages` ({stages!r:.80}) have no rank in common; "
            "leave out one of them"
        )
    return ranks_drawn


def parse_numbers(text: str, *, name: str) -> frozenset[int]:
    """Return the numbers of a list such as `0-7,12`; `name` is that of the option.

    >>> sorted(parse_numbers("0-2, 12", name="--ranks"))
    [0, 1, 2, 12]

    Raises:
        ConfigError: it is no such list.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part, re.ASCII)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        if last < first:
            raise ConfigError(
                f"`{name}` must be numbers and ascending ranges such as 0-7,12, not {text!r:.80}"
            )
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def _chosen(name: str, text: str | None, known: frozenset[int]) -> frozenset[int]:
    if text is None:
        return known
    asked = parse_numbers(text, name=name)
    if unknown := sorted(asked - known):
        choices = f"{min(known)} to {max(known)}" if known else "none"
        few = ", ".join(map(str, unknown[:_FEW])) + (" ..." if len(unknown) > _FEW else "")
        raise ConfigError(f"`{name}` must be of the trace, not {few}; choose from {choices}")
    return asked


def _stage_label(stages: Sequence[int]) -> str:
    if not stages:
        return "no stage"
    return f"stage{'' if len(stages) == 1 else 's'} {', '.join(map(str, stages))}"
