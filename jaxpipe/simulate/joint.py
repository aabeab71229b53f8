"""A collective while it runs: what each transfer still waits for, and who has all it needs."""

from collections.abc import Callable

from jaxpipe.simulate.collective import Collective, Transfer

Send = Callable[[Transfer, Callable[[], None]], None]
"""Sends a transfer over the network, and calls back when it has arrived."""


class Joint:
    """One execution of a collective by the ranks that it joins.

    A transfer leaves when its source has come to the collective, its destination too if there is
    content to put somewhere, and when all that it waits for has arrived. A rank is done when all
    that it sends and receives has arrived.
    """

    def __init__(self, collective: Collective, *, send: Send, done: Callable[[int], None]) -> None:
        self._transfers = collective
        self._send = send
        self._done = done
        self._needs = [len(each.after) + 1 + (each.num_bytes > 0) for each in collective]
        self._users: list[list[int]] = [[] for _ in collective]
        self._waiting: dict[int, list[int]] = {}
        self._open: dict[int, int] = {}
        for position, each in enumerate(collective):
            for need in each.after:
                self._users[need].append(position)
            for rank in (each.source, each.destination):
                self._open[rank] = self._open.get(rank, 0) + 1
            for rank in (each.source, each.destination)[: 1 + (each.num_bytes > 0)]:
                self._waiting.setdefault(rank, []).append(position)

    def join(self, rank: int) -> None:
        """Let a rank come to the collective."""
        assert rank in self._open, f"rank {rank} has no part in this collective"
        for position in self._waiting.pop(rank, ()):
            self._satisfy(position)

    def _satisfy(self, position: int) -> None:
        self._needs[position] -= 1
        if self._needs[position] == 0:
            self._send(self._transfers[position], lambda: self._arrive(position))

    def _arrive(self, position: int) -> None:
        for user in self._users[position]:
            self._satisfy(user)
        transfer = self._transfers[position]
        for rank in (transfer.source, transfer.destination):
            self._open[rank] -= 1
            if self._open[rank] == 0:
                self._done(rank)
