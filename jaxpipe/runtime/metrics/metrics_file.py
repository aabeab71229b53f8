"""The file of JSON lines that rank 0 writes the metrics of steps to."""

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxpipe.runtime.metrics.records import PacedMetrics, StepMetrics, read_rows
from jaxpipe.runtime.storage.checksum import sealed_line

logger = logging.getLogger(__name__)

MAX_WAITING_LINES = 100_000
"""Lines that a full disk keeps in memory, some 50 MB."""


class MetricsFile:
    """A file of JSON lines: first the description of the run, then one line per step.

    A resumed run continues the same file; lines of steps that it repeats are dropped. `key`
    identifies the run, and is read from the file of a resumed run. `truth` says whether the figures
    are measured or emulated. `logged_step` is the last step
    that any attempt of the run has written, dropped lines included.
    """

    def __init__(
        self,
        path: Path,
        description: Mapping[str, Any],
        *,
        first_step: int,
        truth: str = "",
        key: str = "",
    ) -> None:
        self.key, self.logged_step = key, 0
        self._path = path
        self._waiting = deque[str](maxlen=MAX_WAITING_LINES)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced as a whole: a crash in between must not lose the lines of earlier steps.
        draft = path.with_suffix(".tmp")
        with draft.open("wb") as file:
            for line in self._earlier_lines(first_step):
                file.write(line + b"\n")
            header = {
                "run": description,
                "truth": truth,
                "key": self.key,
                "told_step": self.logged_step,
            }
            file.write(sealed_line(header).encode())
        draft.replace(path)

    def _earlier_lines(self, first_step: int) -> Iterator[bytes]:
        """Yield the lines that stay, and take over key and last step of a run that is resumed."""
        has_key = False
        for line, row in read_rows(self._path, lambda line, row: (line, row)):
            if first_step > 0:
                if row.key and not has_key:
                    self.key, has_key = row.key, True
                # Files call it "told_step", also those of earlier versions: their name stays.
                self.logged_step = max(self.logged_step, row.step, row.told_step)
            if row.step <= first_step:
                yield line

    def write(self, metrics: StepMetrics | PacedMetrics) -> None:
        """Append a line, readable at once.

        On a full disk it waits in memory, with a warning, and is written with that of a later step;
        of more than `MAX_WAITING_LINES`, the oldest are lost.
        """
        first_failure = not self._waiting
        self._waiting.append(sealed_line(asdict(metrics)))
        size = self._path.stat().st_size
        try:
            with self._path.open("a") as file:
                file.writelines(self._waiting)
        except OSError as error:
            # Part of the lines may be on the disk; the next ones would be appended to it.
            os.truncate(self._path, size)
            if first_failure:
                logger.warning(
                    "the metrics of step %d wait until they can be written, training continues: %s",
                    metrics.step,
                    error,
                )
            return
        if not first_failure:
            logger.warning(
                "the metrics of %d steps that had to wait are written", len(self._waiting) - 1
            )
        self._waiting.clear()
