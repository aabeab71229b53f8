"""Kills a rank of the run from inside, once, when the program comes by the point that was named.

It wraps what a rank does anyway, in the process of the rank alone: the runtime knows nothing of it.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jaxpipe.runtime.checkpoint.async_saver as saver_module
import jaxpipe.runtime.checkpoint.checkpoint as checkpoint_module
import jaxpipe.runtime.checkpoint.folders as folders_module
import jaxpipe.runtime.step.worker as worker_module
from jaxpipe.chaos.harness.fault_plan import Kill, Struck, note_struck, process_of
from jaxpipe.chaos.harness.kill_points import Point
from jaxpipe.runtime.checkpoint.async_saver import Saver
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.runtime.watchdog import Watchdog
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
_INSIDE_S = 0.0005
_COMPILING_S = 0.2


class Injector:
    """Watches one rank for the point of a `Kill`, and does it.

    Where several ranks come by the point, the victim kills itself; else rank 0 kills it.
    """

    def __init__(self, kill: Kill, config: Path, *, rank: int) -> None:
        self._kill = kill
        self._config = config
        self._is_in_charge = rank == (0 if kill.point.is_of_rank_0 else kill.victim)
        self._step = 0
        self._before: Instruction | None = None
        self._evaluates = False

    def arm(self) -> None:
        """Wrap what the rank does, so that it comes by here."""
        if not self._is_in_charge:
            return
        _before(Watchdog, "phase", self._at_phase)
        _before(Watchdog, "at", lambda _, instruction: self._at_instruction(instruction))
        _before(Worker, "eval_loss", self._at_held_out)
        self._at(Point.BEFORE_SHARDS, Saver, "_write")
        self._at(Point.BEFORE_MANIFEST, saver_module, "commit")
        self._at(Point.BEFORE_RENAME, checkpoint_module, "put_in_place")
        self._at(Point.AFTER_COMMIT, saver_module, "prune")
        if self._kill.point is Point.COMPILE:
            strike = self._strike_soon
            _before(worker_module, "compile_stage", lambda *_, **__: strike(_COMPILING_S))
        if self._kill.point is Point.PRUNE:
            removal = SimpleNamespace(rmtree=shutil.rmtree)
            _before(removal, "rmtree", self._at_removal)
            _replace(folders_module, "shutil", removal)

    def _at(self, point: Point, owner: Any, name: str) -> None:
        if self._kill.point is point:
            _before(owner, name, lambda *_, **__: self._strike(point.value))

    def _at_phase(self, *_: object, step: int) -> None:
        self._step, self._evaluates = step + 1, False

    def _at_held_out(self, *_: object) -> None:
        self._evaluates = True
        if self._kill.point is Point.HELD_OUT:
            self._strike_soon(_INSIDE_S)

    def _at_removal(self, folder: Path, **_: object) -> None:
        if "." not in folder.name:  # a committed one
            self._strike("prune")

    def _at_instruction(self, instruction: Instruction) -> None:
        before, self._before = self._before, instruction
        point = self._kill.point
        if self._evaluates:
            return
        if point is Point.FIRST_FORWARD or (
            point is Point.AFTER_SEND and before is not None and before.op is Op.SEND
        ):
            self._strike(describe(instruction))
        elif _is_at(point, instruction):
            if point is Point.BEFORE_SEND:
                self._strike(describe(instruction))
            else:
                self._strike_soon(_INSIDE_S)

    def _strike_soon(self, delay_s: float) -> None:
        """Strike from another thread, while this one goes on to where it is to be struck."""
        if self._step >= self._kill.step or self._kill.point is Point.COMPILE:
            threading.Timer(delay_s, self._do, args=(self._kill.point.value,)).start()

    def _strike(self, doing: str) -> None:
        if self._step >= self._kill.step or self._kill.point is Point.FIRST_FORWARD:
            self._do(doing)

    def _do(self, doing: str) -> None:
        victim = self._kill.victim
        process = process_of(self._config, rank=victim)
        struck = Struck(victim=victim, doing=doing, at_s=time.monotonic())
        if note_struck(self._config, struck):
            os.kill(process, signal.SIGKILL)


def _is_at(point: Point, instruction: Instruction) -> bool:
    if point in _BUCKETS:
        return instruction.op is Op.REDUCE and instruction.bucket is _BUCKETS[point]
    return instruction.op is _OPS.get(point)


def _replace(owner: Any, name: str, new: Any) -> None:
    setattr(owner, name, new)


def _before(owner: Any, name: str, hook: Callable[..., object]) -> None:
    """Make `owner.name` call a hook with its arguments first."""
    function = getattr(owner, name)

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        hook(*args, **kwargs)
        return function(*args, **kwargs)

    _replace(owner, name, wrapped)
