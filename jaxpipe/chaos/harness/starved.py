"""Take cores from a run: from all of it by other processes, or from one rank almost a whole one.

A rank keeps a thousandth of a core: by a cgroup, or by SIGSTOP and SIGCONT in turn.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.process_signals import die_with_parent

_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_S = 1.0
_PART = 0.001
_MICROSECONDS = 1e6


@contextmanager
def busy(num_processes: int) -> Iterator[None]:
    """Run processes that compute without end, during the block."""
    with ExitStack() as running:
        for _ in range(num_processes):
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", "while True: pass"],
                preexec_fn=die_with_parent,  # noqa: PLW1509  only prctl
            )
            running.callback(process.wait)
            running.callback(process.kill)
        yield


@contextmanager
def in_turn(process: int) -> Iterator[None]:
    """Stop a process, and let it run for a millisecond of each second; it runs after the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                ended.wait(_PERIOD_S * (1 - _PART))
                os.kill(process, signal.SIGCONT)
            ended.wait(_PERIOD_S * _PART)

    thread = threading.Thread(target=run, name="stop and continue", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def can_limit() -> bool:
    """Return whether this user can make groups of processes with a quota of cores."""
    return os.access(_V1 if _V1.exists() else _V2, os.W_OK)


@contextmanager
def limited(process: int) -> Iterator[None]:
    """Give a process a millisecond of a core in each second, in a cgroup; needs root.

    Raises:
        ConfigError: this machine does not let us.
    """
    parent = _V1 if _V1.exists() else _V2
    group = parent / f"jaxpipe-starved-{process}"
    quota_us, period_us = (str(int(s * _MICROSECONDS)) for s in (_PERIOD_S * _PART, _PERIOD_S))
    try:
        group.mkdir()
        if parent == _V1:
            (group / "cpu.cfs_period_us").write_text(period_us)
            (group / "cpu.cfs_quota_us").write_text(quota_us)
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        (group / "cgroup.procs").write_text(str(process))
    except OSError as error:
        raise ConfigError(f"{group} cannot limit a process: {error}; run as root") from error
    try:
        yield
    finally:
        with suppress(OSError):  # it has ended
            (parent / "cgroup.procs").write_text(str(process))
        group.rmdir()
