"""Continue after the loss of a rank, in the same job: shrink, plan again, transfer the state.

::

    error ─► revoke ─► shrink ─► quorum? ─► smaller plan ─► renumber ─► transfer ─► leave spare
                                   │                                      │         ranks out,
                                   └ half or fewer: the job ends          │         compile, train
                                                  incomplete: newest checkpoint
    └───────────────────────────── within `run.recover_s`, or the job ends ──────────────────┘

The new plan may number the ranks in another order, so that most of them keep their stages.

Half of the ranks, or fewer, must not continue: the others could be alive, behind a link that is
down, and continue as well. The ranks that trained last count, not those that started.

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

from jaxpipe.comm import SurvivingTransport, Transport
from jaxpipe.comm.mpi.abort_job import end_launcher
from jaxpipe.errors import CheckpointError, RunError, printable
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.checkpoint.own_disks.available import newest_available
from jaxpipe.runtime.checkpoint.resume import resumed_state
from jaxpipe.runtime.data.order.position import SAMPLES
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.metrics.step_result import StepEnd
from jaxpipe.runtime.recovery.last_state import LastState
from jaxpipe.runtime.recovery.state_transfer import Offer, TransferredState, transfer_state
from jaxpipe.runtime.run_config import RunConfig
from jaxpipe.runtime.train_snapshot import Saved, needed_tensors, own_tensors, to_metadata
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_cause, write_cause

_ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivors:
    """The ranks that survived, by their numbers before the loss, and the number of ranks then."""

    ranks: tuple[int, ...]
    num_ranks: int

    @property
    def lost(self) -> tuple[int, ...]:
        """The ranks that were lost."""
        return tuple(rank for rank in range(self.num_ranks) if rank not in self.ranks)

    @property
    def has_quorum(self) -> bool:
        """Whether the survivors are a majority: no other group can be as large.

        >>> [Survivors(ranks=(0, 2)[:n], num_ranks=3).has_quorum for n in (1, 2)]
        [False, True]
        """
        return 2 * len(self.ranks) > self.num_ranks

    def __str__(self) -> str:
        """Return one line for the terminal.

        >>> print(Survivors(ranks=(0, 2), num_ranks=3))
        rank 1 of 3 is lost
        """
        names = ", ".join(map(str, self.lost))
        verb = "ranks {} of {} are lost" if len(self.lost) > 1 else "rank {} of {} is lost"
        return verb.format(names, self.num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A smaller job; its rank `n` is the `order[n]`-th survivor. The last ones may be spare."""

    job: Job
    order: tuple[int, ...]


SmallerJob = Callable[[Transport, Sequence[int]], Smaller | None]
"""Returns the job for at most these ranks, given by their numbers when they trained last, or None.

All survivors call it, with a transport between them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The smaller job of a survivor, agreed on in `took_s`; without `saved` it starts at step 0.

    `numbers[rank]` is what a rank of it was when it trained last.
    """

    transport: SurvivingTransport
    job: Job
    numbers: tuple[int, ...]
    saved: Saved | None
    survivors: Survivors
    took_s: float

    def __str__(self) -> str:
        """Return one line for the terminal."""
        plan, beginning = self.job.plan, "from the beginning"
        if self.saved is not None:
            from_ranks = isinstance(self.saved, TransferredState)
            source = "the survivors" if from_ranks else "the newest checkpoint"
            beginning = f"after step {self.saved.step}, with the state of {source}"
        return (
            f"{self.survivors}; {plan.num_ranks} continue {beginning}, as {plan.shape} "
            f"(agreed in {self.took_s:.2f} s)"
        )


class Survivor:
    """One rank of a job that survives the loss of others: its transport and its latest state."""

    def __init__(
        self, transport: SurvivingTransport, run: RunConfig, last_state: LastState
    ) -> None:
        self.transport = transport
        self._run = run
        self._last_state = last_state
        # What each rank of the transport was when it trained last.
        self._numbers = tuple(range(transport.num_ranks))
        self._deadline: Timer | None = None

    def recover(self, smaller_job: SmallerJob) -> Resumed | None:
        """Return the smaller job; None if it does not include this rank.

        All survivors call this when one of their messages has failed with a `RankLostError`, and
        again if another rank is lost meanwhile.

        Raises:
            RankLostError: another rank was lost.
            RunError: the job ends, for another reason, or because there is no quorum.
        """
        start_s = time.monotonic()
        self._set_deadline()
        folder, timeout_s = Path(self._run.folder), self._run.timeout_s
        # A rank that ends the job on purpose looks like a lost one to the others.
        if (cause := read_cause(folder)) is not None:
            raise RunError(f"cannot continue: the run has ended already: {cause}")
        # Revoke first: it makes the waits of all other ranks fail, so that they get here too.
        self.transport.revoke(timeout_s=timeout_s)
        self._last_state.interrupt(timeout_s=timeout_s)
        num_ranks = self.transport.num_ranks
        self.transport, ranks = self.transport.shrink()
        self._numbers = tuple(self._numbers[rank] for rank in ranks)
        survivors = Survivors(ranks=ranks, num_ranks=num_ranks)
        smaller = smaller_job(self.transport, self._numbers) if survivors.has_quorum else None
        if smaller is None:
            raise _no_job(folder, survivors)
        job = smaller.job
        self._renumber(smaller.order)
        # Spare ranks take part in the transfer before they leave: they may have tensors to send.
        saved = self._transfer(job)
        # A smaller plan may need fewer ranks than survive: the last ones leave.
        narrowed = self.transport.among(range(job.plan.num_ranks))
        if narrowed is None:
            self._clear_deadline()
            return None
        numbers = self._numbers[: job.plan.num_ranks]
        self.transport, self._numbers = narrowed, tuple(range(job.plan.num_ranks))
        return Resumed(
            transport=narrowed,
            job=job,
            numbers=numbers,
            saved=saved,
            survivors=survivors,
            took_s=time.monotonic() - start_s,
        )

    def _renumber(self, order: Sequence[int]) -> None:
        """Number the survivors in the order of the new plan."""
        renumbered = self.transport.among(order)
        assert renumbered is not None, order  # all survivors are in the order
        self.transport = renumbered
        self._numbers = tuple(self._numbers[number] for number in order)

    def _transfer(self, job: Job) -> Saved | None:
        """Return the state that this rank continues with, from the others or from the disk."""
        transport, timeout_s = self.transport, self._run.timeout_s
        tensors, metadata = _own_state(self._last_state)
        trained = self._last_state.trained
        offer = Offer(
            step=None if tensors is None or trained is None else trained.step,
            metadata=metadata,
            tensors={
                name: (str(tensor.dtype), tensor.shape) for name, tensor in (tensors or {}).items()
            },
            needs=()
            if transport.rank >= job.plan.num_ranks
            else needed_tensors(job, rank=transport.rank),
        )
        transferred = transfer_state(transport, offer, tensors or {}, timeout_s=timeout_s)
        self._last_state.unfinished = None
        if transferred is None:
            return _from_disk(transport, job, timeout_s=timeout_s)
        ended = transferred.metadata[_ENDED]
        self._last_state.unfinished = None if ended is None else msgspec.convert(ended, StepEnd)
        return transferred

    def _set_deadline(self) -> None:
        """End the job unless training restarts in time; a call of MPI may block indefinitely."""
        if self._deadline is not None:
            return
        self._deadline = Timer(self._run.recover_s, _too_late, args=(self._run,))
        self._deadline.daemon = True  # must not keep a rank alive that ends for another reason
        self._deadline.start()
        self._last_state.on_start = self._clear_deadline

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _own_state(last_state: LastState) -> tuple[dict[str, np.ndarray] | None, dict[str, Any]]:
    """Return the tensors of this rank, and the part of the state that is not tensors."""
    trained = last_state.trained
    if trained is None:
        return None, {}
    ended = None if trained.ended is None else msgspec.to_builtins(trained.ended)
    samples = trained.worker.whole.samples_read(trained.step)
    metadata = {**to_metadata(trained.state), SAMPLES: samples, _ENDED: ended}
    return own_tensors(trained.worker, trained.state), metadata


def _from_disk(transport: Transport, job: Job, *, timeout_s: float) -> Saved | None:
    """Return the newest intact checkpoint, as rank 0 finds it; None if there is none.

    Where the hosts share no folder, that of the disks that are left.
    """
    folder, checkpoint = job.folder, None
    if job.disks is not None and job.has_own_checkpoints:
        try:
            available = newest_available(transport, job.disks, folder, timeout_s=timeout_s)
        except CheckpointError:  # which all ranks raise
            return None
        return resumed_state(job, transport, available, timeout_s=timeout_s)
    if transport.rank == 0:
        with suppress(CheckpointError):
            checkpoint = newest_valid(job.checkpoints)
    return resumed_state(job, transport, checkpoint, timeout_s=timeout_s)


def _no_job(folder: Path, survivors: Survivors) -> RunError:
    why = (
        "no smaller plan fits the survivors"
        if survivors.has_quorum
        else f"the {len(survivors.ranks)} survivors are no majority; others may continue elsewhere"
    )
    message = f"{survivors}, and {why}"
    write_cause(folder, Cause(kind=CauseKind.KILLED, message=message, rank=survivors.lost[0]))
    return RunError(f"{message}; start the run again with --resume")


def _too_late(run: RunConfig) -> None:
    message = f"a rank was lost, and the others did not resume training within {run.recover_s:g} s"
    cause = Cause(kind=CauseKind.KILLED, message=message)
    if write_cause(Path(run.folder), cause):
        sys.stderr.write(f"jaxpipe: {printable(str(cause))}; raise `run.recover_s`\n")
        sys.stderr.flush()
    end_launcher()  # the main thread may block in MPI, where no exception reaches it
