"""Start a training run: as the launcher of its ranks, or as one of them.

::

    jaxpipe train CONFIG                          mpirun -n 2 jaxpipe train CONFIG
    prepare ─► plan.toml ─► mpirun ─┬─ rank 0     rank 0   prepare ─► plan ─┬─► train
                                    └─ rank 1     rank 1                    └─► train

The plan is resolved once. A launcher of ours gives its ranks the path of `plan.toml`; ranks of the
user's own launcher receive the plan from rank 0 over the transport, and may have no common disk.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from jaxpipe.config import Config, load_config, place_of
from jaxpipe.errors import CheckpointError, RunError
from jaxpipe.plan import Plan
from jaxpipe.run.drift.new_plan import ADOPTED_EXIT_CODE, adopted_in
from jaxpipe.run.folder.folder_lock import beating, locked
from jaxpipe.run.folder.prepare_run import (
    Prepared,
    begin_run,
    introduce_run,
    prepare,
    report_complete,
)
from jaxpipe.run.rank.start_rank import start_rank
from jaxpipe.run.terminal.console import console, errors, next_line
from jaxpipe.run.terminal.rank_progress import shown_ranks
from jaxpipe.run.train_request import ENTRY, TrainRequest
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.process.exit_cause import find_exit_cause, lack_of_shared_memory
from jaxpipe.runtime.process.launched_rank import rank_here
from jaxpipe.runtime.process.mpirun import STOP_EXIT_CODES, find_mpirun, launch, launch_command
from jaxpipe.runtime.process.process_signals import not_suspended
from jaxpipe.runtime.process.tee import Output
from jaxpipe.runtime.run_config import ComputeKind, Survival
from jaxpipe.runtime.watchdog import (
    Cause,
    CauseKind,
    has_ended,
    have_begun,
    mark_ended,
    read_cause,
    write_cause,
)
from jaxpipe.runtime.watchdog.rank_start import StartDeadline
from jaxpipe.runtime.watchdog.stopped_ranks import StoppedRanks


def start_training(request: TrainRequest) -> int:
    """Train, and return the exit code: as a rank if an MPI has started this process.

    Raises:
        UserError: the input is wrong.
        RunError: the run has failed.
    """
    here = rank_here(os.environ)
    # Once for a run: neither by ranks that a launcher of ours has started, nor by all others.
    is_first = request.plan is None and (here is None or here.rank == 0)
    is_first &= not request.is_supervised  # its supervisor has said so
    notice = _notice if is_first else None
    config = load_config(request.config, request.settings, notice=notice)
    if here is None:
        return _launch(request, config)
    if request.plan_bytes and here.rank == 0:
        _read_plan_file(config, num_bytes=request.plan_bytes)
    return start_rank(request, config, here)


def _read_plan_file(config: Config, *, num_bytes: int) -> None:
    """Write the plan that a supervisor sends to rank 0 to `plan.file`: its host may lack the file.

    Raises:
        OSError: it cannot be written.
        RunError: fewer bytes came.
    """
    path = Path(config.plan.file or "plan.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    # By their number: `mpirun` does not always pass on the end of its input.
    content = sys.stdin.buffer.read(num_bytes)
    if len(content) != num_bytes:
        raise RunError(f"`plan.file` {path}: rank 0 received {len(content)} of {num_bytes} bytes")
    path.write_bytes(content)


def check_training(request: TrainRequest) -> None:
    """Do all checks of a run that come before its ranks, and say the plan; starts nothing.

    Raises:
        UserError: the input is wrong.
    """
    config = load_config(request.config, request.settings, notice=_notice)
    prepared = prepare(config, resume=request.resume, allowed=request.allow_changed)
    introduce_run(prepared)
    line = request.resume_line() if request.resume else next_line(*request.arguments)
    console.print(f"\nchecked; {line}", markup=False)


def _notice(line: str) -> None:
    console.print(f"{line}\n", markup=False)


def _launch(request: TrainRequest, config: Config) -> int:
    """Prepare the run in its locked folder, and start its ranks; one rank needs no MPI."""
    # No thread touches the lock: this process has to fork.
    with locked(Path(config.run.folder), beats=False) as lock:
        prepared = prepare(config, resume=request.resume, allowed=request.allow_changed)
        if prepared.is_complete:
            report_complete(prepared)
            return 0
        num_ranks, survives = prepared.plan.num_ranks, config.run.survive is Survival.SHRINK
        if num_ranks > 1:  # or says what lacks
            launch_command(find_mpirun(), num_ranks=num_ranks, survives=survives)
        plan_file = begin_run(prepared)
        if num_ranks > 1:
            return _start_ranks(prepared, request, plan_file, poll=lock.beat)
        with beating(lock), not_suspended():
            return start_rank(request, config, prepared)


def _start_ranks(
    prepared: Prepared, request: TrainRequest, plan_file: Path, *, poll: Callable[[], object]
) -> int:
    """Run all ranks, and return the exit code; keep why they ended where none of them could."""
    config, plan = prepared.config, prepared.plan
    folder, survives = Path(config.run.folder), config.run.survive is Survival.SHRINK
    begun = [False]

    is_overdue = _overdue(prepared)

    # No thread of its own: this process has to fork.
    with shown_ranks(folder, "starting the ranks") as (output, show):

        def poll_all() -> bool:
            # Remembered: at its end, a run removes the signs of its beginning.
            begun[0] = begun[0] or have_begun(folder)
            poll()
            show()
            return is_overdue(output)

        code = launch(
            replace(request, plan=plan_file).words,
            num_ranks=plan.num_ranks,
            module=ENTRY,
            output=output,
            survives=survives,
            can_stop=lambda: begun[0] or have_begun(folder),
            poll=poll_all,
        )
    if code in STOP_EXIT_CODES:
        code = _report_request(prepared, request, code=code, has_begun=begun[0])
    if code == 0 and survives and not has_ended(folder):
        code = 1  # the survivors have gone, too
    _write_cause_if_killed(folder, plan, code=code, output=output.tail)
    if code not in (0, *STOP_EXIT_CODES) and _progress_of(config) is _SavedProgress.ALL:
        code = _report_complete_anyway(prepared)
    if code == 0 and _progress_of(config) is _SavedProgress.PART:
        is_adopted = request.is_supervised and adopted_in(folder) is not None
        return ADOPTED_EXIT_CODE if is_adopted else 128 + signal.SIGTERM
    return code


def _overdue(prepared: Prepared) -> Callable[[Output], bool]:
    """Return whether ranks should have started, continued, or ended, by now, as a function.

    Why they should have, it writes to the output, and to the folder of the run.
    """
    folder, run = Path(prepared.config.run.folder), prepared.config.run
    num_ranks, startup_timeout_s = prepared.plan.num_ranks, run.startup_timeout_s
    deadline = StartDeadline(folder, num_ranks=num_ranks, timeout_s=startup_timeout_s)
    stopped = StoppedRanks(
        folder,
        num_ranks=num_ranks,
        startup_timeout_s=startup_timeout_s,
        timeout_s=run.timeout_s,
    )
    has_no_end = overdue_end(folder)

    def is_overdue(output: Output) -> bool:
        # In this order: where both know why, ranks that are stopped are what the others wait for.
        cause = stopped.cause() or deadline.cause()
        if cause is None or not write_cause(folder, cause):
            return has_no_end()
        output.write(2, f"jaxpipe: {cause}\n".encode())
        return True

    return is_overdue


_SECONDS_TO_END = 10.0


def overdue_end(folder: Path, *, clock: Callable[[], float] = time.monotonic) -> Callable[[], bool]:
    """Return whether a rank has written ten seconds ago why the run ends, as a function.

    An `mpirun` that has lost a host waits for its daemon there without a deadline.
    """
    since_s: list[float] = []

    def is_overdue() -> bool:
        if not since_s and read_cause(folder) is not None:
            since_s.append(clock())
        return bool(since_s) and clock() - since_s[0] > _SECONDS_TO_END

    return is_overdue


class _SavedProgress(Enum):
    """How many of its steps a run has saved."""

    ALL = auto()
    PART = auto()
    UNKNOWN = auto()
    """It is emulated, or its checkpoints are not there."""


def _progress_of(config: Config) -> _SavedProgress:
    """Return whether a run that ended in order has steps left: one of its ranks got a signal.

    A signal to this process needs no such proof; but one to a rank, or to `mpirun`, passes by.
    """
    if config.run.compute is not ComputeKind.REAL:
        return _SavedProgress.UNKNOWN
    try:
        step = open_checkpoint(latest(place_of(config))).step
    except CheckpointError:  # removed meanwhile, or none yet
        return _SavedProgress.UNKNOWN
    return _SavedProgress.PART if step < config.train.steps else _SavedProgress.ALL


def _report_request(
    prepared: Prepared, request: TrainRequest, *, code: int, has_begun: bool
) -> int:
    """Say what a run has saved that was asked to stop, and return its exit code."""
    if _progress_of(prepared.config) is _SavedProgress.ALL:
        console.print(
            "\nthe request to stop came after the last step, which is saved", markup=False
        )
        return 0
    if not has_begun:
        saved = "" if prepared.checkpoint is None else f"; {prepared.checkpoint.folder} is kept"
        text = f"\nstopped on request before the first step{saved}\n\n"
        resume = request.resume_line() if request.resume else "next: the same command"
        console.print(f"{text}{resume}", markup=False)
    return code


def _report_complete_anyway(prepared: Prepared) -> int:
    """Say that a run that has failed had saved its last step before, and return its exit code.

    Traces, pictures, samples and the end of MPI are beside the result.
    """
    folder = Path(prepared.config.run.folder)
    cause = read_cause(folder)
    with suppress(OSError):
        mark_ended(folder)
    errors.print(
        f"jaxpipe: all {prepared.config.train.steps} steps are saved; what follows them has failed"
        f"{'' if cause is None else f': {cause}'}",
        markup=False,
    )
    return 0


def _write_cause_if_killed(folder: Path, plan: Plan, *, code: int, output: str) -> None:
    """Write a cause where no rank could, because it was killed; its launcher may have named it."""
    if code in (0, 2, *STOP_EXIT_CODES):  # ended as it should, or refused
        return
    message = f"mpirun ended with exit code {code}, and no rank has said why"
    rank = stage = None
    if (death := find_exit_cause(output)) is not None:
        message, rank = f"{death}", death.rank
        if rank is not None and rank < plan.num_ranks:
            stage = plan.stages(rank)[0]
    if (death is None or death.may_lack_memory) and (lack := lack_of_shared_memory()):
        message += f"; {lack}"
    cause = Cause(kind=CauseKind.KILLED, message=message, rank=rank, stage=stage)
    if write_cause(folder, cause):
        errors.print(f"jaxpipe: {cause}", markup=False)
