"""Transport between some ranks of another transport, which it numbers from 0."""

from collections.abc import Sequence

import jax

from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport


class SubsetTransport:
    """Forwards all calls, with its ranks `0 .. n - 1` in place of `members`, in their order.

    Each rank of a group makes one for itself, without a message. Groups that share no rank never
    interfere; a rank in two of them needs tags of its own for each.

    >>> from jaxpipe.comm.local import LocalWorld
    >>> world = LocalWorld(3)
    >>> subset = SubsetTransport(world.transport(2), members=(1, 2))
    >>> subset.rank, subset.num_ranks
    (1, 2)
    """

    def __init__(self, transport: Transport, *, members: Sequence[int]):
        assert transport.rank in members, (transport.rank, members)
        self._transport = transport
        self._members = tuple(members)
        self._rank = self._members.index(transport.rank)

    @property
    def rank(self) -> int:
        """The rank of the caller among the members."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """The number of members."""
        return len(self._members)

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array` to the member `to`."""
        return self._transport.send(array, to=self._members[to], tag=tag)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> Receiving:
        """Start to receive an array of the shape and dtype of `like` from the member `source`."""
        return self._transport.receive(like, source=self._members[source], tag=tag)

    def close(self, *, error: BaseException | None = None) -> None:
        """Close this rank's end of the whole transport."""
        self._transport.close(error=error)
