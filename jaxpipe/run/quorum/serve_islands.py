"""Run a merge server in a folder: its desk, its checkpoints, its log, and its stop."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event

from jaxpipe.config import Config, describe
from jaxpipe.installed import version_of
from jaxpipe.outer import QuorumConfig
from jaxpipe.outer.merge_log import Merge
from jaxpipe.outer.quorum import Merger
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_run import where
from jaxpipe.run.hosts.join_words import JoinAddress, new_key, write_join_file
from jaxpipe.run.hosts.listen import desk_at
from jaxpipe.run.quorum.alike import Alike
from jaxpipe.run.quorum.merge_line import MERGE_FILE, server_address
from jaxpipe.run.quorum.merge_log_file import MergeLog
from jaxpipe.run.quorum.merge_server import MergeServer
from jaxpipe.run.quorum.merged_checkpoints import MergedCheckpoints, saved_merger

_EVERYWHERE = ("", "0.0.0.0", "::")
"""To listen at all addresses; islands then reach the server by the name of its host."""


def serve_islands(
    config: Config, folder: Path, *, host: str, port: int, say: Callable[[str], object]
) -> None:
    """Merge islands until all have ended, or a signal comes; continue what the folder has.

    Raises:
        ConfigError: the address cannot be used, or the folder is that of something else.
        CheckpointError: the newest anchor is corrupt.
    """
    merger = saved_merger(folder, config.quorum)
    desk, address = _desk(folder, host=host, port=port)
    log = MergeLog(folder)
    checkpoints = MergedCheckpoints(folder, describe(config), keep=config.checkpoint.keep)

    def merged(merger: Merger, merge: Merge) -> None:
        checkpoints.merged(merger)
        parts = ", ".join(f"{part.island} ({part.steps})" for part in merge.islands)
        say(f"anchor {merge.anchor}: islands (and inner steps) {parts}")

    server = MergeServer(
        desk,
        Alike(
            quorum=config.quorum,
            batch=config.train.batch,
            seed=config.run.seed,
            versions=version_of("jaxpipe"),
        ),
        log=log.add,
        merged=merged,
        say=say,
        merger=merger,
    )
    file = write_join_file(folder, address, name=MERGE_FILE)
    since = "" if merger is None else f", from anchor {merger.version} on"
    say(
        f"merging at {where(address.host, address.port)}{since}; islands set `quorum.server` to "
        f"{file}"
    )
    try:
        server.run(stop=_stop().is_set)
    finally:
        server.close()
        checkpoints.close(server.merger)
        log.close()


def _desk(folder: Path, *, host: str, port: int) -> tuple[JoinDesk, JoinAddress]:
    """Return a desk, with the key and the port that islands of this folder know already."""
    key, before = new_key(), None
    reached = socket.gethostname() if host in _EVERYWHERE else host
    if (folder / MERGE_FILE).exists():
        before = server_address(QuorumConfig(server=str(folder)))
        key = before.key
    if not port and before is not None and before.host == reached:
        port = before.port
    desk = desk_at(key, addresses=(host,), port=port)
    return desk, JoinAddress(host=reached, port=desk.port, key=key)


def _stop() -> Event:
    """Return what SIGINT and SIGTERM set."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
