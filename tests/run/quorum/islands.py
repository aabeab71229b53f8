"""A merge server in this process, for tests: on a free port, with islands as threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from jaxpipe.outer import QuorumConfig
from jaxpipe.outer.merge_log import Merge, MergeEvent
from jaxpipe.outer.quorum import Merger
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_words import JoinAddress, new_key
from jaxpipe.run.quorum.alike import Alike
from jaxpipe.run.quorum.merge_line import MergeLine
from jaxpipe.run.quorum.merge_server import MergeServer

BATCH, SEED, VERSIONS = 8, 1, "1"


@dataclass(slots=True, kw_only=True)
class Serving:
    """A server that runs in a thread; `events`, `merges` and `said` are what it has done."""

    address: JoinAddress
    server: MergeServer
    thread: threading.Thread
    stop: threading.Event
    events: list[MergeEvent] = field(default_factory=list[MergeEvent])
    merges: list[Merge] = field(default_factory=list[Merge])
    said: list[str] = field(default_factory=list[str])
    lines: list[MergeLine] = field(default_factory=list[MergeLine])

    def line(
        self, config: QuorumConfig, *, batch: int = BATCH, versions: str = VERSIONS
    ) -> MergeLine:
        """Return the line of an island, which is closed with the server."""
        line = MergeLine(
            self.address, config, batch=batch, seed=SEED, versions=versions, say=self.said.append
        )
        self.lines.append(line)
        return line


@contextmanager
def serving(
    config: QuorumConfig,
    *,
    key: str | None = None,
    port: int = 0,
    merger: Merger | None = None,
    versions: str = VERSIONS,
) -> Iterator[Serving]:
    """Serve until the block ends."""
    key = key or new_key()
    events: list[MergeEvent] = []
    merges: list[Merge] = []
    said: list[str] = []
    desk = JoinDesk(bytes.fromhex(key), addresses=("127.0.0.1",), port=port)
    server = MergeServer(
        desk,
        Alike(quorum=config, batch=BATCH, seed=SEED, versions=versions),
        log=events.append,
        merged=lambda _, merge: merges.append(merge),
        say=said.append,
        merger=merger,
    )
    stop = threading.Event()
    thread = threading.Thread(target=server.run, kwargs={"stop": stop.is_set}, daemon=True)
    thread.start()
    address = JoinAddress(host="127.0.0.1", port=desk.port, key=key)
    served = Serving(
        address=address,
        server=server,
        thread=thread,
        stop=stop,
        events=events,
        merges=merges,
        said=said,
    )
    try:
        yield served
    finally:
        stop.set()
        for line in served.lines:
            line.close()
        thread.join(timeout=30)
        server.close()
