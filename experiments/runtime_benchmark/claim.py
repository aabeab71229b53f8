"""A claim: what is measured for it, what the numbers amount to, and their picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, str | int | float]


class CannotMeasureError(Exception):
    """Says why a claim cannot be measured here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all claims are measured with.

    `cases` are the sizes. `training` returns the steps of all runs that the claims of this command
    look at, and makes them when first called. `once` takes the columns that tell a part of the raw
    table and what measures it, and returns its rows: those that an interrupted run has left, if it
    is resumed; each part is written as soon as it is measured. If given, `mpich_python` is a Python
    that has jaxpipe and MPICH.
    """

    cases: Mapping[str, Any]
    training: Callable[[], Sequence[Row]]
    once: Callable[[Row, Callable[[], Sequence[Row]]], list[Row]]
    mpich_python: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim; `aim` says what the summary should show.

    `runs` are the training runs that it looks at (`training.Run`), given the cases. `measure`
    returns the raw numbers, in rows of the same columns, and raises `CannotMeasureError` where it
    cannot. `draw` takes the summary, or with `draws_raw` the raw rows.
    """

    aim: str
    measure: Callable[[Bench], Sequence[Row]]
    summarise: Callable[[Sequence[Row]], Sequence[Row]]
    draw: Callable[[Sequence[Row], Path], None]
    draws_raw: bool = False
    runs: Callable[[Mapping[str, Any]], tuple[Any, ...]] = lambda _: ()
