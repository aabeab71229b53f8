"""A raw table that grows on disk as it is measured, so that an interrupted run can be resumed."""

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.runtime_benchmark.claim import Row
from experiments.runtime_benchmark.tables import grouped, read_csv, write_csv


class RawTable:
    """The rows in a file; with `resumes` what is there already counts as measured.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "raw.csv"
    >>> table = RawTable(path, resumes=False)
    >>> table.once({"round": 0}, lambda: [{"seconds": 2.5}])
    [{'round': 0, 'seconds': 2.5}]
    >>> RawTable(path, resumes=True).once({"round": 0}, lambda: [{"seconds": 3.5}])
    [{'round': 0, 'seconds': 2.5}]
    """

    def __init__(self, path: Path, *, resumes: bool) -> None:
        self._path = path
        self._rows: list[Row] = read_csv(path) if resumes and path.exists() else []

    def once(self, columns: Row, make: Callable[[], Sequence[Row]]) -> list[Row]:
        """Return the rows that have these `columns`; if there are none, make them and write them.

        The rows of one call are written together, each beginning with `columns`.
        """
        known = [row for row in self._rows if columns.keys() <= row.keys()]
        key = tuple(str(value) for value in columns.values())
        found = grouped(known, *columns).get(key, [])
        if found:
            return found
        made: list[Row] = [{**columns, **row} for row in make()]
        self._rows += made
        unfinished = self._path.with_suffix(".unfinished")
        write_csv(self._rows, unfinished)
        unfinished.replace(self._path)
        return made
