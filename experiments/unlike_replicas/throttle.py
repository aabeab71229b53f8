"""Slow the computes of a rank down, by a quota of the kernel's scheduler.

Each rank has a group of cgroup v1 or v2, with `cores` of CPU time in each period of 25 ms. Its
process is bound to a core as well: ranks whose shares add up to a core have it to themselves. The
thread that moves messages has no quota: a slow GPU slows no messages down, and without this each
message waited for the next period.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan
from jaxpipe.runtime.hooks import Hooks

_PERIOD_US = 25_000
"""Shorter than the computes of a microbatch: a share must not come in long bursts. In periods of 4
and 10 ms, ranks that share a core empty each other's caches more often, and a step takes longer."""
_MESSAGES = "progress"
"""The name of the thread of `jaxpipe.comm.mpi` that moves messages."""
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
SHARES_FILE = "shares.json"
"""Next to the configuration: the name of the group, the share and the core of each rank."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a core that a process may use."""

    group: str
    cores: float
    core: int


@contextmanager
def groups(shares: tuple[Share, ...]) -> Iterator[None]:
    """Make the groups of these shares, and remove them afterwards; needs root.

    Raises:
        ConfigError: this machine does not let us.
    """
    made: list[Path] = []
    try:
        for share in shares:
            folder = _parent() / share.group
            folder.mkdir()
            made.append(folder)
            _limit(folder, cores=share.cores)
        yield
    except OSError as error:
        raise ConfigError(
            f"quotas need root and a writable cgroup: {error}; run it on a machine that has them"
        ) from error
    finally:
        for folder in made:
            folder.rmdir()


def join(share: Share) -> None:
    """Move this process into its group, and to its core."""
    (_parent() / share.group / "cgroup.procs").write_text(str(os.getpid()))
    for thread in Path("/proc/self/task").iterdir():  # 0 would be the calling thread alone
        os.sched_setaffinity(int(thread.name), {share.core})


def hooks(config: Path, *, rank: int) -> Hooks:
    """Throttle the rank: `jaxpipe train --hooks` calls this as it starts."""
    shares = msgspec.json.decode(config.with_name(SHARES_FILE).read_bytes(), type=tuple[Share, ...])
    join(shares[rank])
    return _FreeMessages()


class _FreeMessages(Hooks):
    """Takes the thread that moves messages out of the quota, at the first step."""

    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:  # noqa: ARG002
        """Move the thread: it has started by then."""
        if step == 0:
            (thread,) = (each for each in threading.enumerate() if each.name == _MESSAGES)
            file = "cgroup.threads" if _parent() == _V2 else "tasks"
            (_parent() / file).write_text(str(thread.native_id))


def _parent() -> Path:
    return _V1 if _V1.is_dir() else _V2


def _limit(folder: Path, *, cores: float) -> None:
    if _parent() == _V2:
        # Threads of a process in different groups.
        (folder / "cgroup.type").write_text("threaded")
    if cores >= 1:  # bound to one core, it cannot use more
        return
    quota_us = round(cores * _PERIOD_US)
    if _parent() == _V2:
        (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        return
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
