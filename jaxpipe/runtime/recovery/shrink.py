"""Goes on after a rank was lost, in the same job: survivors shrink, plan anew, and share out.

::

    error ─► revoke ─► shrink ─► quorum? ─► a smaller plan ─► hand over ─► narrow ─► compile, train
                                   │                             └ not whole: newest checkpoint
                                   └ half or fewer: the job ends
    └────────────────────────────── within `run.recover_s`, or the job ends ───────────────────┘

Half of the ranks, or fewer, may not go on: the others could be alive, beyond a link that is cut,
and go on as well. What counts are the ranks that trained last, not those that started.

Source of the quorum: Jajodia and Mutchler, "Dynamic voting algorithms for maintaining the
consistency of a replicated database", 1990.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import numpy as np

from jaxpipe.comm import BROADCAST_TAG, SurvivingTransport, Transport, broadcast_bytes
from jaxpipe.comm.mpi.abort_job import end_launcher
from jaxpipe.errors import CheckpointError, RunError
from jaxpipe.runtime.checkpoint import newest_valid, open_checkpoint
from jaxpipe.runtime.config import RunConfig
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.step_result import StepEnd
from jaxpipe.runtime.recovery.last_state import LastState
from jaxpipe.runtime.recovery.state_transfer import Offer, TransferredState, transfer_state
from jaxpipe.runtime.train_snapshot import Saved, held_tensors, needed_tensors, to_metadata
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_cause, write_cause

_ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Who is left of how many ranks, by the numbers that they had."""

    survivors: tuple[int, ...]
    num_ranks: int

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that are gone."""
        return tuple(rank for rank in range(self.num_ranks) if rank not in self.survivors)

    @property
    def has_quorum(self) -> bool:
        """Whether no other group of ranks can be as large.

        >>> [Left(survivors=(0, 2)[:n], num_ranks=3).has_quorum for n in (1, 2)]
        [False, True]
        """
        return 2 * len(self.survivors) > self.num_ranks

    def __str__(self) -> str:
        """Return it in words.

        >>> print(Left(survivors=(0, 2), num_ranks=3))
        rank 1 of 3 is gone
        """
        names = ", ".join(map(str, self.lost))
        verb = "ranks {} of {} are gone" if len(self.lost) > 1 else "rank {} of {} is gone"
        return verb.format(names, self.num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """With what a survivor goes on, after `took_s`; `saved` is None where training begins anew."""

    transport: SurvivingTransport
    job: Job
    saved: Saved | None
    left: Left
    took_s: float

    def __str__(self) -> str:
        """Return it in words."""
        plan, beginning = self.job.plan, "from the beginning"
        if self.saved is not None:
            is_held = isinstance(self.saved, TransferredState)
            beginning = f"after step {self.saved.step}, {'held' if is_held else 'read'}"
            beginning += " by those that are left" if is_held else " from the newest checkpoint"
        return (
            f"{self.left}; {plan.num_ranks} go on {beginning}, with {plan.num_stages} stages x "
            f"{plan.num_replicas} replicas (agreed in {self.took_s:.2f} s)"
        )


class Survivor:
    """One rank of a job that survives lost ranks: its transport, and where its training stands."""

    def __init__(self, transport: SurvivingTransport, run: RunConfig, standing: LastState) -> None:
        self.transport = transport
        self._run = run
        self._standing = standing
        self._deadline: Timer | None = None

    def recover(self, smaller_job: Callable[[Sequence[int]], Job | None]) -> Resumed | None:
        """Leave lost ranks behind; None where the smaller plan has no use for this rank.

        All survivors call this when a message of theirs has failed with a `RankLostError`, and once
        more if another rank is lost meanwhile. `smaller_job` returns the job for at most as many
        ranks as these, given by the numbers that they had before the loss, or None.

        Raises:
            RankLostError: another rank was lost.
            RunError: the job ends, for another reason, or because too few ranks are left.
        """
        start_s = time.monotonic()
        self._set_deadline()
        folder, timeout_s = Path(self._run.folder), self._run.timeout_s
        if (cause := read_cause(folder)) is not None:
            raise RunError(f"the run has ended already: {cause}")
        self.transport.revoke(timeout_s=timeout_s)
        self._standing.interrupt(timeout_s=timeout_s)
        num_ranks = self.transport.num_ranks
        self.transport, survivors = self.transport.shrink()
        left = Left(survivors=survivors, num_ranks=num_ranks)
        job = smaller_job(survivors) if left.has_quorum else None
        if job is None:
            raise _given_up(folder, left)
        saved = self._share_out(job)
        narrowed = self.transport.narrow(num_ranks=job.plan.num_ranks)
        if narrowed is None:
            self._clear_deadline()
            return None
        self.transport = narrowed
        took_s = time.monotonic() - start_s
        return Resumed(transport=narrowed, job=job, saved=saved, left=left, took_s=took_s)

    def _share_out(self, job: Job) -> Saved | None:
        """Return what this rank goes on with, from the others or from the disk."""
        transport, timeout_s = self.transport, self._run.timeout_s
        tensors, metadata = _held(self._standing)
        trained = self._standing.trained
        offer = Offer(
            step=None if tensors is None or trained is None else trained.step,
            metadata=metadata,
            tensors={name: (str(each.dtype), each.shape) for name, each in (tensors or {}).items()},
            needs=()
            if transport.rank >= job.plan.num_ranks
            else needed_tensors(job, rank=transport.rank),
        )
        handed = transfer_state(transport, offer, tensors or {}, timeout_s=timeout_s)
        self._standing.again = None
        if handed is None:
            return _from_disk(transport, job.folder, timeout_s=timeout_s)
        ended = handed.metadata[_ENDED]
        self._standing.again = None if ended is None else msgspec.convert(ended, StepEnd)
        return handed

    def _set_deadline(self) -> None:
        """End the job if training has not begun again in time; MPI may wait for ever."""
        if self._deadline is not None:
            return
        self._deadline = Timer(self._run.recover_s, _too_late, args=(self._run,))
        self._deadline.daemon = True
        self._deadline.start()
        self._standing.on_begin = self._clear_deadline

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _held(standing: LastState) -> tuple[dict[str, np.ndarray] | None, dict[str, Any]]:
    """Return the tensors that this rank holds, and what else the others have to know."""
    trained = standing.trained
    if trained is None:
        return None, {}
    ended = None if trained.ended is None else msgspec.to_builtins(trained.ended)
    metadata = {**to_metadata(trained.state), _ENDED: ended}
    return held_tensors(trained.worker, trained.state), metadata


def _from_disk(transport: Transport, folder: Path, *, timeout_s: float) -> Saved | None:
    """Return the newest intact checkpoint, as rank 0 finds it; None if there is none."""
    name = None
    if transport.rank == 0:
        name = b""
        with suppress(CheckpointError):
            name = str(newest_valid(folder).folder).encode()
    told = broadcast_bytes(transport, name, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    return open_checkpoint(Path(told.decode())) if told else None


def _given_up(folder: Path, left: Left) -> RunError:
    why = (
        "no smaller plan fits the others"
        if left.has_quorum
        else f"{len(left.survivors)} are no majority, others may be going on elsewhere"
    )
    cause = Cause(kind=CauseKind.KILLED, message=f"{left}, and {why}", rank=left.lost[0])
    write_cause(folder, cause)
    return RunError(f"{left}, and {why}; start the run again with --resume")


def _too_late(run: RunConfig) -> None:
    message = f"a rank was lost, and the others do not train again after {run.recover_s:g} s"
    cause = Cause(kind=CauseKind.KILLED, message=message)
    if write_cause(Path(run.folder), cause):
        sys.stderr.write(f"jaxpipe: {cause}; `run.recover_s` may be longer\n")
        sys.stderr.flush()
    end_launcher()
