"""A transport whose ranks may go on without those that are lost.

A message that fails because a rank is lost raises a `RankLostError`, on some ranks. They `revoke`,
so that it does on all, and all that are left `shrink`.
"""

from typing import Protocol, runtime_checkable

from jaxpipe.comm.transport import Transport


@runtime_checkable
class SurvivingTransport(Transport, Protocol):
    """Moves arrays between ranks, and between those that are left when some are lost."""

    def revoke(self, *, timeout_s: float) -> None:
        """Let all that is under way fail, here and on all ranks, and wait until it has."""
        ...

    def shrink(self) -> "tuple[SurvivingTransport, tuple[int, ...]]":
        """Return the transport of all that are left, and which ranks of this one they are."""
        ...

    def narrow(self, *, num_ranks: int) -> "SurvivingTransport | None":
        """Return the transport of the first ranks, and None on the others."""
        ...
