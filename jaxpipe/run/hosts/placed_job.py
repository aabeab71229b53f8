"""Start processes on the hosts of a plan with Open MPI's `mpirun`: ranks, or a sign of life.

`mpirun` starts a daemon on each other host over ssh, so each must be reachable by its name without
a password, with Python, configuration and run folder at the same paths.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from jaxpipe.run.hosts.mpi_ways import EXPORTED
from jaxpipe.run.train_request import ENTRY, TrainRequest
from jaxpipe.runtime.process.job_folder import job_folder
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.runtime.process.mpirun import (
    Wish,
    find_mpirun,
    launch_command,
    run_child,
)
from jaxpipe.runtime.process.process_signals import (
    die_with_parent,
    kill_marked,
    kill_with_descendants,
    shows_pending_signals,
)

_POLL_S = 0.05
_MARK = "JAXPIPE_SIGN_OF_LIFE"
_SIGN = ("sleep", "0.5")
"""Not `true`: `mpirun` (Open MPI 5.0) misses the end of a process that ends at once in 8 to 28 % of
the starts on another host (measured, 25 each), and waits for ever; of this one in none of 50."""
_SECONDS_TO_DIE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Starts processes; its hostfiles lie in `folder`, and `environment` is for `mpirun`."""

    folder: Path
    environment: Mapping[str, str]

    def command(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the command of `mpirun` that starts a process per entry, without its program."""
        number, name = tempfile.mkstemp(dir=self.folder, prefix="hosts-")
        with os.fdopen(number, "w") as file:
            file.writelines(f"{host}\n" for host in hosts)
        exported = tuple(name for name in EXPORTED if name in self.environment)
        return launch_command(
            find_mpirun(), num_ranks=len(hosts), hosts=Path(name), exported=exported
        )

    def run_ranks(
        self,
        hosts: Sequence[str],
        request: TrainRequest,
        *,
        can_stop: Callable[[], bool],
        poll: Callable[[], Wish | None],
        plan_file: Path | None = None,
    ) -> int:
        """Run the ranks of a request on these hosts, and return the exit code.

        The `plan_file` is sent to the input of rank 0, whose host may not have it.
        """
        return run_child(
            [*self.command(hosts), sys.executable, "-P", "-m", ENTRY, *request.words],
            read_from=plan_file,
            first_signal=signal.SIGUSR1,
            blocks_sigterm=shows_pending_signals(),
            can_stop=can_stop,
            poll=poll,
            environment=self.environment,
        )


@contextmanager
def starter(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[Starter]:
    """Yield what starts processes; its files are removed after the block.

    MPI has these settings (`mpi_ways`) in addition to those of the environment.
    """
    with tempfile.TemporaryDirectory(prefix="jaxpipe-hosts-") as name, job_folder() as environment:
        yield Starter(folder=Path(name), environment={**environment, **settings})


class SignOfLife:
    """Whether `mpirun` can start a process on a host, as a child process that finds it out."""

    def __init__(self, start: Starter, host: str) -> None:
        self.host = host
        self._mark = secrets.token_hex(16)
        self._since_s = time.monotonic()
        self._process = subprocess.Popen(
            [*start.command([host]), *_SIGN],
            env={**MEMORY_SETTINGS, **start.environment, **os.environ, _MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, signal.SIGKILL),  # noqa: PLW1509  only prctl
            process_group=0,
        )

    def poll(self, *, timeout_s: float) -> bool | None:
        """Return whether it can; None while that is unknown, False after the timeout."""
        code = self._process.poll()
        if code is None and time.monotonic() - self._since_s <= timeout_s:
            return None
        if code != 0:
            self.stop()
        return code == 0

    def stop(self) -> None:
        """End the child, and what it has started: an ssh that it still waits for, or has left."""
        if self._process.poll() is None:
            kill_with_descendants(self._process.pid)
        # Not after an answer: an ssh that stays (`ControlPersist`) is for the next connection.
        kill_marked(_MARK, self._mark)
        self._process.wait(_SECONDS_TO_DIE)


def answering(start: Starter, hosts: Sequence[str], *, here: str, most_s: float) -> tuple[str, ...]:
    """Return which of these hosts answer within `most_s`, in order; this one always does.

    Once half of them have answered, the others have three times as long as those took, and two
    seconds at least.
    """
    begin_s = time.monotonic()
    asked = [SignOfLife(start, host) for host in hosts if host != here]
    alive = {here} & set(hosts)
    open_, timeout_s = list(asked), most_s
    while open_:
        for each in open_[:]:
            answer = each.poll(timeout_s=timeout_s)
            if answer is None:
                continue
            open_.remove(each)
            alive |= {each.host} if answer else set()
        if len(asked) > 1 and 2 * len(open_) <= len(asked) and alive - {here}:
            timeout_s = min(timeout_s, max(2.0, 3.0 * (time.monotonic() - begin_s)))
        time.sleep(_POLL_S)
    return tuple(host for host in hosts if host in alive)
