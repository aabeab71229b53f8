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

    `cases` are the sizes. If given, `torch_python` is a Python that has PyTorch, `mpich_python` one
    that has jaxpipe and MPICH.
    """

    cases: Mapping[str, Any]
    torch_python: Path | None = None
    mpich_python: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim; `aim` says what the summary should show.

    `measure` returns the raw numbers, in rows of the same columns, and raises
    `CannotMeasureError` where it cannot. `draw` takes the summary, or with `draws_raw` the raw
    rows.
    """

    aim: str
    measure: Callable[[Bench], Sequence[Row]]
    summarise: Callable[[Sequence[Row]], Sequence[Row]]
    draw: Callable[[Sequence[Row], Path], None]
    draws_raw: bool = False
