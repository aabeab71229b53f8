"""Lines about what is slow, and has not failed: a link whose messages arrive, a rank that runs."""

import logging
from collections.abc import Callable, Mapping

from jaxpipe.runtime.watchdog.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

_SAYS_AGAIN_S = 60.0
"""Between two lines, in seconds of waits."""


class SlowLines:
    """Says what a rank waits for: at once, and again after a minute of waits."""

    def __init__(self) -> None:
        self._since_s = _SAYS_AGAIN_S

    def say(self, elapsed_s: float, line: Callable[[], str]) -> None:
        """Log the line that the callback returns, if it is due; waits are `elapsed_s` longer."""
        self._since_s += elapsed_s
        if self._since_s >= _SAYS_AGAIN_S:
            self._since_s = 0.0
            logger.warning("%s", line())


def explain_late(mine: Heartbeat, heartbeats: Mapping[int, Heartbeat], *, waited_s: float) -> str:
    """Return for whom a rank has waited whose messages still arrive, and between which hosts.

    >>> mine, other = (
    ...     Heartbeat(rank=rank, stage=0, step=1, doing="receive", waits_for=(1 - rank,),
    ...               overdue=False, beat=0, process=1, host=f"node-{rank}")
    ...     for rank in (0, 1)
    ... )
    >>> explain_late(mine, {1: other}, waited_s=2.5)
    'rank 0 has waited 2.5 s for rank 1, whose messages still arrive from node-1 on node-0'
    """
    ranks = ", ".join(map(str, mine.waits_for))
    hosts = {heartbeats[rank].host for rank in mine.waits_for if rank in heartbeats}
    origin = ", ".join(sorted(hosts - {mine.host})) or mine.host
    return (
        f"rank {mine.rank} has waited {waited_s:.1f} s for rank {ranks}, whose messages still "
        f"arrive from {origin} on {mine.host}"
    )


def explain_slow(waiting: int, described: str, *, waited_s: float) -> str:
    """Return for whom a rank has waited that is alive, and what it does.

    >>> explain_slow(0, "rank 1 is running (process 42 on node-1)", waited_s=2.5)
    'rank 0 has waited 2.5 s, and rank 1 is running (process 42 on node-1): slow, not stopped'
    """
    return f"rank {waiting} has waited {waited_s:.1f} s, and {described}: slow, not stopped"
