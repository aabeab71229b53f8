"""Owner of an emulation: names of namespaces carry the process that created them.

A process is identified by its id and its start time, because ids are reused. Everything that an
emulation creates on the machine carries this name; whatever carries the name of a dead process may
be removed::

    jaxpipe-4711-88123-0    the namespace of host 0 of process 4711, which began at tick 88123
    jp4711                  the bridge over which its ranks are started
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = Path("/run/netns")
_NAME = re.compile(r"jaxpipe-(\d+)-(\d+)(?:-.+)?")
_START_FIELD = 19
"""Of /proc/PID/stat behind the name in brackets: proc(5), field 22."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Owner:
    """A process that emulates a network."""

    pid: int
    started: int

    @property
    def name(self) -> str:
        """What the names of all that it owns begin with."""
        return f"jaxpipe-{self.pid}-{self.started}"

    @property
    def bridge(self) -> str:
        """Its bridge; the devices on it are called so too, with a number behind."""
        return f"jp{self.pid}"

    def namespace(self, host: int | str) -> str:
        """Return the name of a host's namespace."""
        return f"{self.name}-{host}"

    @property
    def folder(self) -> Path:
        """Where its files lie while it runs."""
        return Path("/run") / self.name

    def is_alive(self) -> bool:
        """Say whether the process still runs."""
        return _started(self.pid) == self.started


def this_process() -> Owner:
    """Return this process as an owner.

    >>> this_process().is_alive()
    True
    >>> Owner(pid=this_process().pid, started=0).is_alive()
    False
    """
    pid = os.getpid()
    started = _started(pid)
    assert started is not None, pid
    return Owner(pid=pid, started=started)


def parse_owner(name: str) -> Owner | None:
    """Return the owner of something of this name; None if it is nobody's.

    >>> parse_owner("jaxpipe-4711-88123-0")
    Owner(pid=4711, started=88123)
    >>> parse_owner("blue")
    """
    match = _NAME.fullmatch(name)
    return match and Owner(pid=int(match[1]), started=int(match[2]))


def owned() -> dict[Owner, list[str]]:
    """Return the namespaces of each owner on this machine, dead ones among them."""
    names_of: dict[Owner, list[str]] = {}
    for folder in (NAMESPACES, Path("/run")):
        for path in folder.glob("jaxpipe-*"):
            owner = parse_owner(path.name)
            if owner is not None:
                names = names_of.setdefault(owner, [])
                names += [path.name] if folder == NAMESPACES else []
    return names_of


def _started(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None if it has ended."""
    # The name, in brackets, may itself contain blanks and brackets: cut after the last one.
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie (Z) or dead (X) process has ended.
    return None if state in "ZX" else int(fields[_START_FIELD - 1])
