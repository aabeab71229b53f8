"""Search for a new plan in a process of its own, at a low priority."""

import json
import subprocess
import sys
import time
from pathlib import Path
from shutil import which
from typing import Protocol, runtime_checkable

from jaxpipe.profile.measuring_process import without_mpi
from jaxpipe.run.drift.new_plan import Replanned

BUDGET_S = 20.0
"""Seconds of the processor for the search of a new plan."""
_MOST_BESIDES_S = 600.0
"""Seconds to start and to simulate, on cores that are busy with training."""
_NICENESS = "10"


@runtime_checkable
class Search(Protocol):
    """A search for a new plan that is under way."""

    def result(self) -> Replanned | str | None:
        """Return what was found, or why nothing was; None while it is under way."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class SearchProcess:
    """The search for the run in a folder; what it prints is in `drift.log` there."""

    def __init__(self, folder: Path, tflops: float, *, budget_s: float = BUDGET_S) -> None:
        nice = [found, "-n", _NICENESS] if (found := which("nice")) else []
        words = [str(folder), str(budget_s), str(tflops)]
        self._log, self._most_s = folder / "drift.log", budget_s + _MOST_BESIDES_S
        self._until_s = time.monotonic() + self._most_s
        with self._log.open("wb") as log:  # a pipe that is full would block the search
            self._process = subprocess.Popen(
                [*nice, sys.executable, "-P", "-m", "jaxpipe.run.drift.replan", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=without_mpi(),
            )

    def result(self) -> Replanned | str | None:
        """Return what was found, or why nothing was; None while it is under way."""
        if self._process.poll() is None:
            if time.monotonic() < self._until_s:
                return None
            self.stop()
            return f"the search did not end in {self._most_s:g} s"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        try:
            found = json.loads(lines[-1])
            return found["error"] if "error" in found else Replanned(**found)
        except (IndexError, ValueError, TypeError):
            return f"the search ended with exit code {self._process.returncode}, see {self._log}"

    def stop(self) -> None:
        """End the process, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=10.0)
