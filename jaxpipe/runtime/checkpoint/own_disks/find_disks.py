"""Find out which ranks share the run folder: each writes a file, and looks for those of all others.

The names are random, and nobody has looked them up before: a client of NFS remembers for a while
that a file is missing, so a fixed name could stay invisible after it was written.
"""

import secrets
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from jaxpipe.comm import BARRIER_TAG, GATHER_TAG, Transport, barrier, exchange_bytes, first_text
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks

_PREFIX = ".seen-by-"


def find_disks(transport: Transport, folder: Path, *, timeout_s: float) -> Disks:
    """Return which ranks see the same `folder`; all ranks call this.

    The folder is created where it is missing, and removed again if it stays empty: an input that is
    refused later leaves nothing.

    Raises:
        ConfigError: a rank cannot write to its folder; all ranks raise it.
        DeadlineError: a rank did not answer in time.
    """
    token = folder / f"{_PREFIX}{secrets.token_hex(16)}"
    host, is_new = socket.gethostname(), not folder.exists()
    problem = _write(token)
    where = f"{problem} on {host}" if problem else ""
    refusal = first_text(transport, where, tag=GATHER_TAG, timeout_s=timeout_s)
    found = None if refusal else _look(transport, token, host, timeout_s=timeout_s)
    # In step, since ranks may share the folder: all have looked, then all files are gone, and then
    # the folder, before any rank makes something in it.
    _unlink(token)
    barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
    if is_new:
        with suppress(OSError):  # another rank has removed it
            folder.rmdir()
    barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
    if found is None:
        raise ConfigError(
            "each rank writes to the run folder, on its host's own disk or on a shared one: "
            f"`run.folder` {str(folder)!r:.80} cannot be written: {refusal}"
        )
    return found


def _look(transport: Transport, token: Path, host: str, *, timeout_s: float) -> Disks:
    """Exchange the names of all files, look for them here, and exchange what was seen."""
    mine = msgspec.json.encode((token.name, host))
    everyone = exchange_bytes(transport, mine, tag=GATHER_TAG, timeout_s=timeout_s)
    tokens = [msgspec.json.decode(each, type=tuple[str, str]) for each in everyone]
    names = [name for name, _ in tokens]
    first = next(i for i in range(transport.rank + 1) if (token.parent / names[i]).exists())
    seen = exchange_bytes(transport, b"%d" % first, tag=GATHER_TAG, timeout_s=timeout_s)
    return Disks(leader_of=tuple(map(int, seen)), hosts=tuple(host for _, host in tokens))


def _write(token: Path) -> str:
    """Write the file of this rank; return why that is impossible, an empty string if it is not."""
    try:
        token.parent.mkdir(parents=True, exist_ok=True)
        token.touch(exist_ok=False)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _unlink(token: Path) -> None:
    with suppress(OSError):
        token.unlink(missing_ok=True)
