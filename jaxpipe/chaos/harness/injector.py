"""Kill a rank of a run from inside, once, when it comes by the point that was named.

`jaxpipe run CONFIG --hooks jaxpipe.chaos.harness.injector:injector` puts it into each rank, which
does what `orders.json` beside the configuration says.
"""

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from jaxpipe.chaos.harness.fault_plan import (
    FaultPlan,
    Kill,
    Struck,
    note_process,
    note_struck,
    process_of,
    read_fault_plan,
)
from jaxpipe.chaos.harness.kill_points import Point
from jaxpipe.plan import Plan
from jaxpipe.runtime.hooks import Hooks, SavePhase
from jaxpipe.schedule import Bucket, Instruction, Op, describe

_OPS = {
    Point.FORWARD: Op.FORWARD,
    Point.BACKWARD_INPUT: Op.BACKWARD_INPUT,
    Point.BACKWARD_WEIGHT: Op.BACKWARD_WEIGHT,
    Point.BEFORE_SEND: Op.SEND,
    Point.RECEIVE: Op.RECEIVE,
    Point.UPDATE: Op.UPDATE,
}
_BUCKETS = {Point.GRADIENT_SUM: Bucket.STAGE, Point.SCALAR_SUM: Bucket.SCALARS}
_SAVE_PHASES = {
    SavePhase.SHARDS: Point.BEFORE_SHARDS,
    SavePhase.MANIFEST: Point.BEFORE_MANIFEST,
    SavePhase.RENAME: Point.BEFORE_RENAME,
    SavePhase.PRUNE: Point.AFTER_COMMIT,
    SavePhase.REMOVE: Point.PRUNE,
}
# Seconds from the hook to the strike: inside of an instruction, and of a compilation.
_INSIDE_S = 0.0005
_COMPILING_S = 0.2


def injector(config: Path, *, rank: int) -> "Injector":
    """Return the hooks of a rank, which do as the fault plan of its run says."""
    note_process(config, rank=rank)
    return Injector(read_fault_plan(config), config, rank=rank)


class Injector(Hooks):
    """Hooks that watch one rank for the point of a `Kill`, and kill the victim there.

    Where several ranks come by the point, the victim kills itself; else rank 0 kills it.
    """

    def __init__(self, faults: FaultPlan, config: Path, *, rank: int) -> None:
        kill = faults.kill
        in_charge = None if kill is None else (0 if kill.point.is_of_rank_0 else kill.victim)
        self._kill: Kill | None = kill if rank == in_charge else None
        self._compile_s = faults.compile_s if rank == 0 else 0.0
        self._config = config
        self._step = 0
        self._before: Instruction | None = None
        self._evaluates = False

    def before_compile(self, *, done: int, total: int) -> None:  # noqa: ARG002
        """Make the compilation last longer, or kill the victim during it."""
        if done:
            return
        if self._is_at(Point.COMPILE):
            self._strike_soon(_COMPILING_S)
        time.sleep(self._compile_s)

    def after_read(
        self,
        plan: Plan,  # noqa: ARG002
        tokens: np.ndarray | None,  # noqa: ARG002
        *,
        rank: int,  # noqa: ARG002
        step: int,
    ) -> None:
        """Note that a training step begins."""
        self._step, self._evaluates = step + 1, False  # hooks count from 0

    def before_evaluation(self) -> None:
        """Note that the held-out loss is computed, whose instructions are no points."""
        self._evaluates = True
        if self._is_at(Point.HELD_OUT):
            self._strike_soon(_INSIDE_S)

    def before_instruction(self, instruction: Instruction) -> None:
        """Strike at an instruction, or while it is executed."""
        before, self._before = self._before, instruction
        if self._kill is None or self._evaluates:
            return
        point = self._kill.point
        follows_send = before is not None and before.op is Op.SEND
        if point is Point.FIRST_FORWARD or (point is Point.AFTER_SEND and follows_send):
            self._strike(describe(instruction))
        elif _is_at(point, instruction):
            if point is Point.BEFORE_SEND:
                self._strike(describe(instruction))
            else:
                self._strike_soon(_INSIDE_S)

    def before_save_phase(self, phase: SavePhase) -> None:
        """Strike at a phase of a save."""
        if self._is_at(point := _SAVE_PHASES[phase]):
            self._strike(point.value)

    def _is_at(self, point: Point) -> bool:
        return self._kill is not None and self._kill.point is point

    def _strike_soon(self, delay_s: float) -> None:
        """Strike from another thread, while this one reaches what it is to be struck in."""
        assert self._kill is not None, "nobody is to be killed"
        point = self._kill.point
        # A compilation comes before all steps.
        if self._step >= self._kill.step or point is Point.COMPILE:
            threading.Timer(delay_s, self._do, args=(self._kill, point.value)).start()

    def _strike(self, doing: str) -> None:
        assert self._kill is not None, "nobody is to be killed"
        if self._step >= self._kill.step or self._kill.point is Point.FIRST_FORWARD:
            self._do(self._kill, doing)

    def _do(self, kill: Kill, doing: str) -> None:
        # Before the note: if the process is not known, the fault has not happened yet.
        process = process_of(self._config, rank=kill.victim)
        struck = Struck(victim=kill.victim, doing=doing, at_s=time.monotonic())
        if note_struck(self._config, struck):
            os.kill(process, signal.SIGKILL)


def _is_at(point: Point, instruction: Instruction) -> bool:
    if point in _BUCKETS:
        return instruction.op is Op.REDUCE and instruction.bucket is _BUCKETS[point]
    return instruction.op is _OPS.get(point)
