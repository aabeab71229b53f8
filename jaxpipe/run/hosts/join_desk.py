"""Takes the requests of hosts that would join, while the supervisor of the run does other work.

Nothing here waits: `poll` takes what has arrived. A connection that shows no key within five
seconds is closed. Until it has shown one it counts among those of its address and of all; where
there are too many, one of them makes room, chosen by lot, and is asked to try again. So however
many connections say nothing, a host with the key finds its way in.
"""

import ipaddress
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from jaxpipe.run.hosts.join_words import (
    MOST_BYTES,
    Answer,
    AnswerKind,
    Busy,
    Challenge,
    JoinRequest,
    line_of,
    new_nonce,
    word_of,
)

_SECONDS_TO_ASK = 5.0
_MOST_OF_ADDRESS, _MOST_CALLERS = 32, 128
"""Connections that have shown no key."""
_MOST_HOSTS = 256
"""Connections that have."""
_MOST_ACCEPTED = 256
"""Connections that one poll takes: the others wait in the system's queue."""
_WAITING = 1024
_MOST_CHARACTERS = 600
"""Of an answer, whose characters take up to six bytes each of `MOST_BYTES`."""
_EVERYWHERE = ("",)


@dataclass(slots=True, kw_only=True, eq=False)
class _Caller:
    """A connection from a `network`; `request` is what it has asked for, with its key."""

    connection: socket.socket
    network: str
    challenge: Challenge
    until_s: float
    received: bytearray = field(default_factory=bytearray)
    request: JoinRequest | None = None

    def send(self, word: object) -> bool:
        """Send a word, which is smaller than any buffer; return whether it fitted."""
        line = line_of(word)
        try:
            return self.connection.send(line) == len(line)
        except OSError:  # it has gone, or reads nothing
            return False


class JoinDesk:
    """Listens at addresses for hosts that have the `key`; port 0 is any free one.

    Raises:
        OSError: an address cannot be used.
    """

    def __init__(
        self,
        key: bytes,
        *,
        addresses: Sequence[str] = _EVERYWHERE,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._clock = clock
        self._callers: list[_Caller] = []
        self._random = random.Random()
        self._listening: list[socket.socket] = []
        try:
            for address in addresses:
                self._listening.append(_listening(address, port))
                port = self.port  # the same at all of them
        except OSError:
            self.close()
            raise

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._listening[0].getsockname()[1]

    def poll(self) -> tuple[JoinRequest, ...]:
        """Return the requests that have arrived since the last call; never waits."""
        # First those that are here: who has shown the key makes room for nobody.
        requests = self._requests()
        for listening in self._listening:
            self._accept(listening)
        requests += self._requests()
        now_s = self._clock()
        for caller in self._callers[:]:
            if caller.request is None and now_s > caller.until_s:
                self._drop(caller)
        return tuple(requests)

    def answer(self, host: str, kind: AnswerKind, text: str) -> None:
        """Answer all requests of a host; only a host that should wait stays connected."""
        for caller in self._callers[:]:
            if caller.request is None or caller.request.host != host:
                continue
            answer = Answer(kind=kind, text=f"{text:.{_MOST_CHARACTERS}}")
            was_sent = caller.send(answer.signed(self._key, caller.request))
            if kind is not AnswerKind.WAIT or not was_sent:
                self._drop(caller)

    def hand_over(self, request: JoinRequest, text: str) -> socket.socket | None:
        """Answer that a host takes part, and return its connection; None if it has gone."""
        for caller in self._callers[:]:
            if caller.request is request:
                answer = Answer(kind=AnswerKind.JOINED, text=f"{text:.{_MOST_CHARACTERS}}")
                self._callers.remove(caller)
                if caller.send(answer.signed(self._key, request)):
                    return caller.connection
                caller.connection.close()
        return None

    def close(self) -> None:
        """Close all connections; hosts that wait learn from it that the run has ended."""
        for caller in self._callers[:]:
            self._drop(caller)
        for listening in self._listening:
            listening.close()

    def _requests(self) -> list[JoinRequest]:
        requests = (self._request(caller) for caller in self._callers[:])
        return [request for request in requests if request is not None]

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):  # nobody is there, or nobody is left, or no descriptor is free
            for _ in range(_MOST_ACCEPTED):
                connection, address = listening.accept()
                connection.setblocking(False)
                caller = _Caller(
                    connection=connection,
                    network=network_of(address[0]),
                    challenge=Challenge(nonce=new_nonce()),
                    until_s=self._clock() + _SECONDS_TO_ASK,
                )
                self._make_room(caller.network)
                self._callers.append(caller)
                if not caller.send(caller.challenge):
                    self._drop(caller)

    def _make_room(self, network: str) -> None:
        """Drop one of the connections without a key, if there are too many of them."""
        strangers = [caller for caller in self._callers if caller.request is None]
        counts = Counter(caller.network for caller in strangers)
        if counts[network] < _MOST_OF_ADDRESS:
            if len(strangers) < _MOST_CALLERS:
                return
            network = counts.most_common(1)[0][0]
        chosen_by_lot = self._random.choice([c for c in strangers if c.network == network])
        chosen_by_lot.send(Busy(busy=True))
        self._drop(chosen_by_lot)

    def _request(self, caller: _Caller) -> JoinRequest | None:
        """Return the request of a caller, once it is complete and signed."""
        try:
            content = caller.connection.recv(MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            content = b""
        caller.received += content
        if not content or len(caller.received) > MOST_BYTES:
            self._drop(caller)
            return None
        if caller.request is not None or not caller.received.endswith(b"\n"):
            return None
        request = word_of(bytes(caller.received), JoinRequest)
        if request is None or not request.is_signed(self._key, caller.challenge):
            self._drop(caller)
            return None
        if sum(other.request is not None for other in self._callers) >= _MOST_HOSTS:
            caller.send(Busy(busy=True))
            self._drop(caller)
            return None
        caller.request = request
        return request

    def _drop(self, caller: _Caller) -> None:
        with suppress(OSError):
            caller.connection.close()
        if caller in self._callers:
            self._callers.remove(caller)


def network_of(address: str) -> str:
    """Return whom an address belongs to: of IPv6, a host has a whole network of them.

    >>> network_of("10.0.0.1"), network_of("::ffff:10.0.0.1"), network_of("fd00::1:2%eth0")
    ('10.0.0.1', '10.0.0.1', 'fd00::/64')
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


def _listening(address: str, port: int) -> socket.socket:
    """Return a socket that listens at an address, of either kind; at "" of both.

    Raises:
        OSError: the address cannot be used.
    """
    is_dual = not address and socket.has_dualstack_ipv6()
    try:
        family = socket.AF_INET6 if is_dual else _family_of(address, port)
        listening = socket.create_server(
            (address, port), family=family, backlog=_WAITING, dualstack_ipv6=is_dual
        )
    except UnicodeError as error:  # of a name that no name can be
        raise OSError(f"it is no name of a host: {error}") from None
    listening.setblocking(False)
    return listening


def _family_of(address: str, port: int) -> socket.AddressFamily:
    if not address:
        return socket.AF_INET
    return socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
