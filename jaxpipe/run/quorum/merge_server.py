"""The server that merges islands: takes deliveries, ends rounds, hands out anchors.

::

    this thread        desk.poll ─► a thread per island      asked? ─► Ask      due? ─► merge, log
    thread of island   Hello ─► Anchor ─► Deliver ─► waits for the merge ─► Anchor ─► ...

No island waits for another one's connection: each has a thread, and what it sends is complete
before it counts.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread

import numpy as np

from jaxpipe.collective import codec_of
from jaxpipe.outer.merge_log import First, Given, Merge, MergeEvent
from jaxpipe.outer.quorum import Delivery, Merger, digest_of, fresh_merger
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_words import AnswerKind, JoinRequest
from jaxpipe.run.quorum.alike import Alike
from jaxpipe.run.quorum.messages import (
    Anchor,
    Ask,
    Bye,
    Deliver,
    FirstAnchor,
    Head,
    Hello,
    MessageError,
    Refused,
    Shapes,
    Wanted,
    keep_alive,
    packed,
    payload_bytes,
    receive,
    send,
    unpacked,
)

_POLL_S = 0.02
_PAUSE_S = 60.0
"""The longest pause within a message, and before the first one."""
_NEXT_S = 86400.0 * 30
"""The longest time to the next delivery; whether an island is there, its connection says."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Island:
    """A connection of an island; `sending` is held while something is sent.

    Two threads use it. Each has a socket of its own for it, since a socket has one timeout.
    """

    connection: socket.socket
    writer: socket.socket
    sending: Lock = field(default_factory=Lock)
    number: int = -1
    asked_for: int = -1

    def send(self, head: Anchor | Ask | Wanted | Refused, payload: bytes = b"") -> None:
        with self.sending:
            send(self.writer, head, payload, timeout_s=_PAUSE_S)

    def close(self) -> None:
        """Close the connection, for both threads."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        self.writer.close()


class MergeServer:
    """Merges the islands that come to a desk, until all have ended.

    `log` is called with each event that decides the bits of the anchors, before an island learns
    of it; `merged` after each merge, with the merger at rest, and `say` with lines for the
    terminal. With a `merger`, it continues from there.
    """

    def __init__(
        self,
        desk: JoinDesk,
        alike: Alike,
        *,
        log: Callable[[MergeEvent], object],
        merged: Callable[[Merger, Merge], object],
        say: Callable[[str], object],
        merger: Merger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = alike.quorum
        self._desk = desk
        self._config = config
        self._alike = alike
        self._codec = codec_of(config.codec)
        self._log = log
        self._merged = merged
        self._say = say
        self._clock = clock
        self._changed = Condition()
        self._islands: dict[int, _Island] = {}
        self._shapes: Shapes = {}
        self._offering: _Island | None = None
        self._payload = b""
        self._is_over = False
        self.merger: Merger | None = None
        if merger is not None:
            self._shapes = {name: state.anchor.shape for name, state in merger.states.items()}
            self._begin(merger)

    def run(self, *, stop: Callable[[], bool]) -> None:
        """Serve until all islands have ended, `stop` says so, or none has come back in time."""
        with self._changed:
            self._log(self._alike.began(self.merger))
        has_served, alone_since_s = False, self._clock()
        while not stop():
            for request in self._desk.poll():
                self._take(request)
            with self._changed:
                self._advance()
                is_alone = not self._islands
                is_over = self._is_over and self.merger is not None and self.merger.has_begun
            if not is_alone:
                has_served, alone_since_s = True, self._clock()
            elif is_over and has_served:
                return
            elif self._clock() - alone_since_s > self._config.timeout_s:
                self._say(f"no island for {self._config.timeout_s:g} s: the server ends")
                return
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Close all connections, and the desk; log nothing more."""
        self._desk.close()
        with self._changed:
            self._log = lambda _: None  # threads of islands may still be there
            for island in self._islands.values():
                island.close()

    def _take(self, request: JoinRequest) -> None:
        if text := self._alike.refusal(request):
            self._desk.answer(request.host, AnswerKind.REFUSED, text)
            return
        connection = self._desk.hand_over(request, "the merge server knows the key")
        if connection is not None:
            keep_alive(connection)
            island = _Island(connection=connection, writer=connection.dup())
            Thread(target=self._serve, args=(island,), name=request.host, daemon=True).start()

    def _advance(self) -> None:
        """Ask, and end the round, where it is time; holds the lock."""
        merger = self.merger
        if merger is None:
            return
        for number in merger.asked():
            island = self._islands.get(number)
            if island is not None and island.asked_for < merger.version:
                island.asked_for = merger.version
                # A thread, since a connection that takes nothing would hold up all others.
                Thread(target=_ask, args=(island, merger.version), daemon=True).start()
        if merger.is_due(now_s=self._clock()):
            merge = merger.merge()
            self._log(merge)
            self._payload = packed(_anchor(merger))
            self._changed.notify_all()
            self._merged(merger, merge)

    def _serve(self, island: _Island) -> None:
        is_bye = False
        try:
            self._greet(island)
            while not is_bye:
                is_bye = self._serve_message(island)
        except MessageError as error:
            with suppress(OSError):
                island.send(Refused(text=f"{error!s:.600}"))
            self._say(f"island {island.number} is refused: {error}")
        except OSError as error:
            self._say(f"island {island.number} is gone: {error.strerror or error}")
        finally:
            island.close()
            self._forget(island, is_bye=is_bye)

    def _greet(self, island: _Island) -> None:
        head, _ = receive(island.connection, most_bytes=0, timeout_s=_PAUSE_S, idle_s=_PAUSE_S)
        if not isinstance(head, Hello):
            raise MessageError(f"an island begins with Hello, not {type(head).__name__}")
        self._alike.check(head, self._shapes)
        island.number = head.island
        with self._changed:
            if (before := self._islands.get(head.island)) is not None:
                before.close()  # the island has come back before its end was seen
            self._islands[head.island] = island
            self._is_over = False
            if not self._shapes:
                self._shapes = dict(head.shapes)
        self._say(f"island {head.island} is there")
        self._first_anchor(island)
        with self._changed:
            assert self.merger is not None, "there is an anchor"
            self.merger.join(head.island)
            number, payload = self.merger.version, self._payload
            # Else it will deliver first, and continue from the anchor after that.
            if head.base is None or number < head.base:
                self._log_given(island, number, step=head.step, joined=head.base is None)
        island.send(Anchor(number=number), payload)

    def _first_anchor(self, island: _Island) -> None:
        """Wait until there is an anchor; the first island that has none to wait for offers one."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self.merger is not None or self._offering is None,
                timeout=self._config.timeout_s,
            ):
                raise MessageError("no island has offered its parameters in time; try again")
            if self.merger is not None:
                return
            self._offering = island
        island.send(Wanted())
        head, payload = self._receive(island, timeout_s=_PAUSE_S)
        if not isinstance(head, FirstAnchor):
            raise MessageError(f"an offer was wanted, not {type(head).__name__}")
        merger = fresh_merger(self._config, unpacked(payload, self._shapes))
        first = First(island=island.number, digest=merger.digest())
        with self._changed:
            self._log(first)
            self._begin(merger)
            self._changed.notify_all()

    def _serve_message(self, island: _Island) -> bool:
        """Take a delivery and answer with the next anchor; return whether the island has ended."""
        head, payload = self._receive(island, timeout_s=_NEXT_S)
        if isinstance(head, Bye):
            return True
        if not isinstance(head, Deliver):
            raise MessageError(f"an island delivers, or ends; it said {type(head).__name__}")
        gradients = unpacked(payload, self._shapes, self._codec)
        delivery = Delivery(
            island=island.number,
            base=head.base,
            step=head.step,
            steps=head.steps,
            tokens=head.tokens,
            gradients=gradients,
            digest=digest_of(gradients),
        )
        with self._changed:
            merger = self.merger
            assert merger is not None, "there is an anchor"
            round_ = merger.version
            try:
                if not merger.deliver(delivery):
                    round_ = -1  # it is in this anchor
            except ValueError as error:
                raise MessageError(str(error)) from error
            timeout_s = self._config.timeout_s
            if not self._changed.wait_for(lambda: merger.version != round_, timeout=timeout_s):
                raise MessageError(f"no quorum within `quorum.timeout_s` ({timeout_s:g})")
            number, anchor = merger.version, self._payload
            self._log_given(island, number, step=head.step, joined=False)
        island.send(Anchor(number=number), anchor)
        return False

    def _receive(self, island: _Island, *, timeout_s: float) -> tuple[Head, bytes]:
        return receive(
            island.connection,
            most_bytes=payload_bytes(self._shapes),
            timeout_s=timeout_s,
            idle_s=_PAUSE_S,
        )

    def _log_given(self, island: _Island, number: int, *, step: int, joined: bool) -> None:
        """Log that an island continues from the anchor of this number; holds the lock.

        A connection that another one has replaced is closed, and will not learn of it.
        """
        if self._islands.get(island.number) is island:
            self._log(Given(island=island.number, anchor=number, step=step, joined=joined))

    def _begin(self, merger: Merger) -> None:
        self.merger = merger
        self._offering = None
        self._payload = packed(_anchor(merger))

    def _forget(self, island: _Island, *, is_bye: bool) -> None:
        with self._changed:
            if self._offering is island:
                self._offering = None
            if self._islands.get(island.number) is island:
                del self._islands[island.number]
                if self.merger is not None:
                    self.merger.leave(island.number)
                if not self._islands:
                    self._is_over = is_bye
            self._changed.notify_all()


def _ask(island: _Island, number: int) -> None:
    with suppress(OSError):
        island.send(Ask(number=number))


def _anchor(merger: Merger) -> dict[str, np.ndarray]:
    return {name: state.anchor for name, state in merger.states.items()}
