"""The lock of a run folder: one run at a time writes to it.

::

    launcher, or rank 0 of the user's own ─► run/lock: host, process, when it started
                                             │
    another run ── is the holder alive? ─────┼─ same machine: process id and start time
                                             └─ other machine: age of the last beat
                     yes ─► refused, in one line          no ─► takes the lock over

The file is created by a link, which is atomic on NFS as well. The holder touches it every five
seconds. Ages are differences of two times of the file system, so clocks need not agree.

`jaxpipe run` holds the lock from its first attempt to the end of the last, also between them. Its
attempts are its child processes, and a process may use a lock that its parent holds. With
`--hosts`, attempts are ranks of `mpirun`, on any host, which show the token of the lock.
"""

import errno
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

import msgspec

from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import read_json
from jaxpipe.run.folder.output_files import unwritable

LOCK_FILE = "lock"
_BEAT_S = 5.0
_STALE_S = 60.0
_MOST_BYTES = 4096
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of file systems without hard links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds a lock.

    `machine` is equal for processes that see each other's process ids. `started` is when the
    process began, in ticks since the machine did: ids are used again.
    """

    host: str
    machine: str
    process: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]  # others would signal whole groups
    started: int | None
    since: str
    token: str


class FolderLock:
    """A lock that is held: `beat` shows that its holder lives."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self._path = path
        self._holder = holder
        self._beat_s = time.monotonic()

    @property
    def token(self) -> str:
        """What tells this lock from others; ranks that a launcher starts elsewhere show it."""
        return self._holder.token

    def beat(self) -> None:
        """Touch the file, if that is due; a full disk or a lost folder is no reason to stop."""
        now_s = time.monotonic()
        if now_s - self._beat_s >= _BEAT_S:
            self._beat_s = now_s
            with suppress(OSError):
                os.utime(self._path)  # without times: a file server then sets its own

    def release(self) -> None:
        """Remove the file, unless somebody has removed or replaced it."""
        with suppress(OSError):
            if _read(self._path) == self._holder:
                self._path.unlink()


@contextmanager
def locked(folder: Path, *, beats: bool = True, token: str | None = None) -> Iterator[FolderLock]:
    """Hold the lock of a run folder, which is created if it is missing.

    With `beats` a thread touches the file; without, the caller does. A lock of the parent process,
    or with this `token`, is used, and stays when the block ends.

    Raises:
        ConfigError: another run holds the lock, or the folder cannot be written.
    """
    path, mine = folder / LOCK_FILE, _this_process()
    if _is_held_by_parent(path) or _has_token(path, token):
        yield FolderLock(path, mine)
        return
    try:
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(path, mine)
    except OSError as error:
        raise unwritable(folder, error) from error
    lock = FolderLock(path, mine)
    try:
        with beating(lock) if beats else nullcontext():
            yield lock
    finally:
        lock.release()
        if is_new:
            with suppress(OSError):
                folder.rmdir()  # an input that was refused leaves no empty folder


@contextmanager
def beating(lock: FolderLock) -> Iterator[None]:
    """Touch the file of a lock in a thread."""
    ended = Event()

    def run() -> None:
        while not ended.wait(_BEAT_S):
            lock.beat()

    Thread(target=run, name="beat of the folder's lock", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def holder_of(folder: Path) -> Holder | None:
    """Return the process that trains in a folder; None if there is none, or it has died."""
    path = folder / LOCK_FILE
    try:
        holder = _read(path)
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return None
    return None if holder is None or _is_stale(holder, age_s=age_s) else holder


def _is_held_by_parent(path: Path) -> bool:
    holder = _read(path)
    return (
        holder is not None
        and (holder.machine, holder.process) == (_machine(), os.getppid())
        and _is_alive(holder)
    )


def _has_token(path: Path, token: str | None) -> bool:
    holder = _read(path)
    return token is not None and holder is not None and holder.token == token


def _acquire(path: Path, mine: Holder) -> None:
    """Create the file, or take it over from a holder that has died.

    Raises:
        ConfigError: its holder lives, or a folder is in its place.
        OSError: the folder cannot be written.
    """
    for file in (path, _guard(path)):
        if file.is_dir() and not file.is_symlink():  # anything else is replaced
            raise ConfigError(
                f"`run.folder` {path.parent} has a folder {file.name!r} in the place of a file "
                "that a run writes; remove it"
            )
    draft = path.with_name(f"{path.name}.{mine.token}")
    try:
        draft.write_bytes(msgspec.json.encode(mine))
        if _link(draft, path):
            return
        holder, age_s = _read(path), _age_s(path, now_s=draft.stat().st_mtime)
        if not _is_stale(holder, age_s=age_s) or not _take_over(path, draft, holder):
            raise ConfigError(_refusal(path, _read(path), age_s=age_s))
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _link(draft: Path, path: Path) -> bool:
    """Create the lock with the content of the draft; return False if there is one."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return draft.stat().st_nlink > 1  # NFS: the answer to the first request was lost
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(draft.read_bytes())
    return True


def _take_over(path: Path, draft: Path, stale: Holder | None) -> bool:
    """Replace a stale lock; return False if another process is first.

    Several may have found it stale: a second file lets one of them replace it, once.
    """
    guard = _guard(path)
    with suppress(OSError):
        if _age_s(guard, now_s=draft.stat().st_mtime) > _STALE_S:
            guard.unlink()  # of a process that was killed meanwhile
    try:
        os.close(os.open(guard, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    try:
        if path.exists() and _read(path) != stale:
            return False
        draft.replace(path)
        return True
    finally:
        guard.unlink(missing_ok=True)


def _guard(path: Path) -> Path:
    return path.with_name(f"{path.name}.takeover")


def _read(path: Path) -> Holder | None:
    """Return the content of a lock, None if it is not readable."""
    # Opened, not only looked at: on NFS, only then does another host's change show.
    try:
        return read_json(path, Holder, most_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return None


def _age_s(path: Path, *, now_s: float) -> float:
    """Return the seconds since the last beat; 0 for a lock that has just been removed."""
    try:
        return max(0.0, now_s - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _is_stale(holder: Holder | None, *, age_s: float) -> bool:
    if holder is None or holder.machine != _machine():
        return age_s > _STALE_S
    return not _is_alive(holder)


def _is_alive(holder: Holder) -> bool:
    try:
        os.kill(holder.process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        return True
    return holder.started is None or _started(holder.process) == holder.started


def _refusal(path: Path, holder: Holder | None, *, age_s: float) -> str:
    rule = f"a folder has one run at a time: `run.folder` {path.parent} is in use"
    if holder is None:
        wait_s = max(0.0, _STALE_S - age_s)
        return (
            f"{rule}, by whom cannot be read: {path} is damaged; start again in {wait_s:.0f} s, "
            f"when it is taken over, or, if no run is in it, remove {path}"
        )
    who = f"{rule} by process {holder.process} on {holder.host} since {holder.since}"
    if holder.machine == _machine():
        return f"{who}; wait for it, stop it with `kill {holder.process}`, or name another folder"
    return (
        f"{who}, last seen {age_s:.0f} s ago; wait for it, name another folder, or, if it is gone, "
        f"remove {path} (after {_STALE_S:.0f} s without a sign of it, that is not necessary)"
    )


def _this_process() -> Holder:
    return Holder(
        host=socket.gethostname(),
        machine=_machine(),
        process=os.getpid(),
        started=_started(os.getpid()),
        since=datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
        token=secrets.token_hex(8),
    )


def _machine() -> str:
    """Return what distinguishes this machine, since its last start, and this container on it."""
    if sys.platform != "linux":
        return socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _started(process: int) -> int | None:
    """Return when a process started, in ticks since the machine did; None if that is unknown.

    A process that has ended, and that its parent has not waited for, has started at -1.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    # The second field is the name of the program in parentheses, and may hold anything.
    fields = text.rpartition(")")[2].split()
    return -1 if fields[0] in ("Z", "X") else int(fields[19])
