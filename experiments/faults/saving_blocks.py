"""Train blocks of steps, alternately with a save at their beginning and without one.

A block with a save ends when that save is committed, so that the next block bears none of its cost.
"""

import time
from dataclasses import dataclass
from typing import Any

from jaxpipe.comm import BARRIER_TAG, barrier
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint.async_saver import Saver
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.worker import Worker, start
from jaxpipe.runtime.train_snapshot import restore_state, snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The measurement: blocks of each of the `intervals`, in steps, `rounds` times each way."""

    config: dict[str, Any]
    intervals: tuple[int, ...]
    rounds: int
    out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The seconds of a block of `interval` steps, and of the copy that blocks training.

    A block without a save has `copy_s` 0.
    """

    interval: int
    seconds: float
    copy_s: float

    @property
    def is_saved(self) -> bool:
        """Whether there was a save."""
        return self.copy_s > 0


class _Blocks:
    """A training run that advances block by block."""

    def __init__(self, worker: Worker, saver: Saver) -> None:
        self._worker = worker
        self._saver = saver
        self._state: TrainState = restore_state(worker, None)[0]
        self._step = 0

    def train(self, interval: int, *, saves: bool) -> Block:
        """Train a block that begins with a save if `saves`."""
        timeout_s = self._worker.job.run.timeout_s
        barrier(self._worker.transport, tag=BARRIER_TAG, timeout_s=timeout_s)
        begin_s, copy_s = time.perf_counter(), 0.0
        if saves:
            self._saver.begin(snapshot(self._worker, self._state, step=self._step))
            copy_s = time.perf_counter() - begin_s
        for _ in range(interval):
            self._state, _ = self._worker.train_step(self._state, step=self._step)
            self._step += 1
        failure = self._saver.finish()
        assert failure is None, failure
        seconds = time.perf_counter() - begin_s
        return Block(interval=interval, seconds=seconds, copy_s=copy_s)


def measure(task: Task, transport: MpiTransport) -> list[Block]:
    """Return the blocks of all rounds, with and without saves in turn."""
    config = config_from(task.config)
    job = job_from(config, plan_from(config))
    worker = start(job, transport)
    saver = Saver(transport, folder=job.folder, keep=2, timeout_s=job.run.timeout_s)
    blocks = _Blocks(worker, saver)
    blocks.train(max(task.intervals), saves=True)  # warms up
    measured = [
        blocks.train(interval, saves=saves)
        for number in range(task.rounds)
        for interval in task.intervals
        for saves in ((False, True) if number % 2 else (True, False))
    ]
    worker.close()
    return measured
