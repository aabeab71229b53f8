"""What becomes of records that cannot be read: the first ends the preparation, or all are counted.

::

    out/bad-records.jsonl    {"where": "line 7 of a.jsonl", "reason": "`text` must be ..."}
"""

import json
import logging
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from jaxpipe.errors import DataError

BAD_RECORDS: Final = "bad-records.jsonl"
_EXAMPLES: Final = 3
_log = logging.getLogger(__name__)


class OnBad(StrEnum):
    """What a record does that cannot be read."""

    STOP = "stop"
    """It ends the preparation."""
    SKIP = "skip"
    """It is left out and counted."""


@dataclass(slots=True, kw_only=True)
class RecordCounts:
    """How many records a source has, how many of them are empty, and those that are bad.

    The bad ones are written to a file, if there is a folder for it.
    """

    on_bad: OnBad = OnBad.STOP
    folder: Path | None = None
    num_records: int = 0
    num_empty: int = 0
    num_bad: int = 0
    examples: list[str] = field(default_factory=list)

    def add_bad(self, error: DataError, *, where: str) -> None:
        """Count a bad record.

        Raises:
            DataError: the first one, if it ends the preparation.
        """
        if self.on_bad is OnBad.STOP:
            raise DataError(
                f"{error}; or set `on_bad` to skip, to leave such records out"
            ) from None
        self.num_bad += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(str(error))
        if self.folder is not None:
            with (self.folder / BAD_RECORDS).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"where": where, "reason": str(error)}) + "\n")

    def report(self) -> None:
        """Warn of the records that are left out."""
        if self.num_empty:
            _log.warning(
                "%s of %s records are empty: each is an end of text alone",
                f"{self.num_empty:,}",
                f"{self.num_records:,}",
            )
        if self.num_bad:
            _log.warning(
                "%s of %s records are bad and left out, see %s; the first: %s",
                f"{self.num_bad:,}",
                f"{self.num_records:,}",
                BAD_RECORDS if self.folder is None else self.folder / BAD_RECORDS,
                "; ".join(self.examples),
            )
