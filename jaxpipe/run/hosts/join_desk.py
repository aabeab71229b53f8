"""Takes the requests of hosts that would join, while the supervisor of the run does other work.

Nothing here waits: `poll` takes what has arrived. A connection that shows no key within ten seconds
is closed, and so are connections beyond sixteen.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from jaxpipe.run.hosts.join_words import (
    MOST_BYTES,
    Answer,
    AnswerKind,
    Challenge,
    JoinRequest,
    line_of,
    new_nonce,
    word_of,
)

_SECONDS_TO_ASK = 10.0
_MOST_CALLERS = 16


@dataclass(slots=True, kw_only=True)
class _Caller:
    """A connection; `request` is what it has asked for, with its key."""

    connection: socket.socket
    challenge: Challenge
    until_s: float
    heard: bytearray = field(default_factory=bytearray)
    request: JoinRequest | None = None

    def send(self, word: object) -> None:
        """Send a word, which is smaller than any buffer; a caller that has gone gets none."""
        with suppress(OSError):
            self.connection.sendall(line_of(word))


class JoinDesk:
    """Listens at an address for hosts that have the `key`; port 0 is any free one.

    Raises:
        OSError: the address cannot be used.
    """

    def __init__(
        self,
        key: bytes,
        *,
        address: str = "",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._clock = clock
        self._callers: list[_Caller] = []
        self._listening = socket.create_server((address, port), backlog=_MOST_CALLERS)
        self._listening.setblocking(False)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return self._listening.getsockname()[1]

    def poll(self) -> tuple[JoinRequest, ...]:
        """Return the requests that have arrived since the last call; never waits."""
        self._accept()
        found = [request for each in self._callers if (request := self._heard(each)) is not None]
        now_s = self._clock()
        for each in self._callers[:]:
            if each.request is None and now_s > each.until_s:
                self._drop(each)
        return tuple(found)

    def answer(self, host: str, kind: AnswerKind, text: str) -> None:
        """Answer all requests of a host; only a host that should wait stays connected."""
        for each in self._callers[:]:
            if each.request is None or each.request.host != host:
                continue
            each.send(Answer(kind=kind, text=text).signed(self._key, each.request))
            if kind is not AnswerKind.WAIT:
                self._drop(each)

    def close(self) -> None:
        """Close all connections; hosts that wait learn from it that the run has ended."""
        for each in self._callers[:]:
            self._drop(each)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # nobody is there, or nobody is left
            while True:
                connection, _ = self._listening.accept()
                if len(self._callers) >= _MOST_CALLERS:
                    connection.close()
                    continue
                connection.setblocking(False)
                caller = _Caller(
                    connection=connection,
                    challenge=Challenge(nonce=new_nonce()),
                    until_s=self._clock() + _SECONDS_TO_ASK,
                )
                self._callers.append(caller)
                caller.send(caller.challenge)

    def _heard(self, caller: _Caller) -> JoinRequest | None:
        """Return the request of a caller, once it is complete and signed."""
        try:
            content = caller.connection.recv(MOST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            content = b""
        caller.heard += content
        if not content or len(caller.heard) > MOST_BYTES:
            self._drop(caller)
            return None
        if caller.request is not None or not caller.heard.endswith(b"\n"):
            return None
        request = word_of(bytes(caller.heard), JoinRequest)
        if request is None or not request.is_signed(self._key, caller.challenge):
            self._drop(caller)
            return None
        caller.request = request
        return request

    def _drop(self, caller: _Caller) -> None:
        with suppress(OSError):
            caller.connection.close()
        if caller in self._callers:
            self._callers.remove(caller)
