"""Runs over an emulated network, metered and killed; and what their ranks write, as curves."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from math import nan
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.over_the_wire.meters import Meters, metered
from experiments.over_the_wire.processes import run_together
from experiments.over_the_wire.systems import Cell, Point
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.topo.emulate import Emulation

_TIMEOUT_S = 1200.0


def peer_points(task: Path) -> tuple[Point, ...]:
    """Return the steps of a run of peers, by the clock of rank 0; losses are means over ranks."""
    ranks = _lines_of_ranks(task)
    points, seconds = [], 0.0
    # A rank that was killed has fewer lines.
    for number, line in enumerate(ranks[0]):
        lines = [rank[number] for rank in ranks if number < len(rank)]
        seconds += line["step_s"]
        losses = [each["loss"] for each in lines if each["loss"] is not None]
        held_out = [each["eval_loss"] for each in lines if each["eval_loss"] is not None]
        points.append(
            Point(
                step=line["step"],
                seconds=seconds,
                loss=fmean(losses),
                held_out=held_out[0] if held_out else None,
            )
        )
    return tuple(points)


def peer_clocks(task: Path) -> tuple[tuple[float, ...], ...]:
    """Return the seconds at the end of each step of each rank: some peers wait for nobody."""
    return tuple(
        tuple(accumulate(line["step_s"] for line in lines)) for lines in _lines_of_ranks(task)
    )


def _lines_of_ranks(task: Path) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in path.read_text().splitlines()[1:]]
        for path in sorted(task.glob("steps-*.jsonl"))
    ]


def jaxpipe_points(metrics: Path) -> tuple[Point, ...]:
    """Return the steps of a run of jaxpipe."""
    points, seconds = [], 0.0
    for step in read_metrics(metrics):
        seconds += step.step_s
        points.append(
            Point(step=step.step, seconds=seconds, loss=step.loss, held_out=step.eval_loss)
        )
    return tuple(points)


def last_step(path: Path) -> int | None:
    """Return the last step in a file of JSON lines, 0 with its first line, and None before."""
    if not path.exists():
        return None
    # The last line may be written at this moment.
    lines = path.read_bytes().splitlines(keepends=True)
    steps = (json.loads(line).get("step", 0) for line in lines if line.endswith(b"\n"))
    return max(steps, default=None)


@dataclass(slots=True)
class Kill:
    """Kills a rank after a step, and measures the longest time without a new step from then on."""

    after: int | None
    """The step; None: nothing is killed."""
    progress: Path
    """The file of steps of a rank that lives."""
    kill: Callable[[], object]
    recovery_s: float = nan
    _step: int = 0
    _last_s: float = field(default_factory=time.monotonic)
    _is_done: bool = False

    def watch(self) -> None:
        """Look at the steps; called many times per second."""
        if self.after is None:
            return
        step, now_s = last_step(self.progress) or 0, time.monotonic()
        if step > self._step:
            if self._is_done:
                gap_s = now_s - self._last_s
                # Of a number and NaN, `fmax` is the number.
                self.recovery_s = float(np.fmax(self.recovery_s, gap_s))
            self._step, self._last_s = step, now_s
        if step >= self.after and not self._is_done:
            self._is_done = True
            self.kill()


def run_watched(
    emulation: Emulation,
    commands: Sequence[Sequence[str]],
    cell: Cell,
    kill: Kill,
    *,
    servers: Sequence[Sequence[str]] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Meters:
    """Run commands over an emulated network, with the kill of a cell; return what was metered."""
    with metered(
        emulation, num_steps=lambda: last_step(kill.progress), half_cores=cell.half_cores
    ) as meters:
        run_together(
            commands,
            cell.folder,
            servers=servers,
            settings=settings,
            timeout_s=_TIMEOUT_S,
            watch=kill.watch,
        )
    return meters


def kill_processes(pids: Sequence[int]) -> None:
    """Kill processes at once."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
