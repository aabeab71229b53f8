"""`jaxpipe join`: makes this host a part of a run over hosts."""

import socket
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.cli.versions import version_line
from jaxpipe.errors import ConfigError
from jaxpipe.run.hosts.join_run import join_run
from jaxpipe.run.hosts.join_words import read_join_file
from jaxpipe.topo.names import is_host_name


def join(
    run: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]],
    *,
    host: str | None = None,
    timeout: float = 600.0,
) -> int:
    """Join a run of `jaxpipe run --hosts` from a host that is new, or back.

    The run stops after its step, plans again with the devices of this host, and continues; the
    command ends when the host takes part, and says since which step. The run reaches the host over
    ssh, and its cluster file has the host with its links.

    Args:
        run: `join.json` from the folder of the run, or that folder: the address and the key.
        host: the name of this host in the cluster of the run, by default its own name.
        timeout: how long to wait for the first step of this host [s].
    """
    host = socket.gethostname() if host is None else host
    if not is_host_name(host):
        raise ConfigError(
            f"`--host` must be the name of this host in the cluster of the run, not {host!r:.80}"
        )
    print(
        join_run(
            read_join_file(run),
            host=host,
            versions=version_line(),
            timeout_s=timeout,
            say=_show,
        ),
        flush=True,
    )
    return 0


def _show(line: str) -> None:
    print(line, flush=True)
