"""The folder of what jaxpipe keeps for a user between runs, and the name of this processor."""

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jaxpipe.foreign_file import lines_of


def user_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder `jaxpipe` in the user's caches, by the convention of the platform.

    >>> user_cache({"XDG_CACHE_HOME": "/tmp/caches"}).as_posix()
    '/tmp/caches/jaxpipe'

    Raises:
        RuntimeError: the user has no home.
    """
    base = environment.get("XDG_CACHE_HOME", "")
    if not Path(base).is_absolute():  # relative ones are to be ignored, says the convention
        home = Path.home()
        base = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(base) / "jaxpipe"


def check_private(folder: Path) -> None:
    """Check that nobody else can write what this process would read or execute.

    Raises:
        PermissionError: others may write to the folder.
    """
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"others may write to {folder}")


def processor() -> str:
    """Return a name for this machine's processor: its model and its instruction set."""
    facts = [platform.machine(), platform.processor(), *_facts()]
    return f"{platform.machine()}-{hashlib.sha256('|'.join(facts).encode()).hexdigest()[:12]}"


def has_instructions(name: str) -> bool:
    """Return whether this machine's processor has a set of instructions, as Linux names it."""
    return any(line.startswith("flags") and name in line.split() for line in _facts())


def _facts() -> list[str]:
    """Return the lines of Linux on the processor that programs for it depend on."""
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    with suppress(OSError):
        lines = lines_of(Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0])
        return [line for line in lines if line.startswith(names)]
    return []
