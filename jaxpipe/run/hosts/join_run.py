"""Join a run from a new host: ask its supervisor, and wait until the host takes part."""

import random
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from jaxpipe.errors import ConfigError, RunError
from jaxpipe.run.hosts.join_words import (
    MOST_BYTES,
    Answer,
    AnswerKind,
    Busy,
    Challenge,
    JoinAddress,
    JoinRequest,
    line_of,
    new_nonce,
    word_of,
)

_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 2.0
_SECONDS_TO_CONNECT = 10.0


def join_run(
    address: JoinAddress,
    *,
    host: str,
    versions: str,
    timeout_s: float,
    say: Callable[[str], object],
) -> str:
    """Ask to join as `host`, and return the last answer; `say` is called with those before it.

    Raises:
        ConfigError: the run refuses the host.
        RunError: the supervisor cannot be reached, has another key, or does not answer in time.
    """
    text, connection = join_and_stay(
        address, host=host, versions=versions, timeout_s=timeout_s, say=say
    )
    connection.close()
    return text


def join_and_stay(
    address: JoinAddress,
    *,
    host: str,
    versions: str,
    timeout_s: float,
    say: Callable[[str], object],
) -> tuple[str, socket.socket]:
    """Ask to join as `join_run` does; return the connection as well, which has no timeout."""
    attempt = _Attempt(
        address=address, host=host, versions=versions, until_s=time.monotonic() + timeout_s, say=say
    )
    shown = where(address.host, address.port)
    waits_s = _FIRST_WAIT_S
    try:
        while (joined := attempt.run()) is None:
            # By lot, so that hosts that were turned away together come back one by one.
            attempt.sleep(random.uniform(0.5, 1.0) * waits_s)
            waits_s = min(2 * waits_s, _MOST_WAIT_S)
    except TimeoutError as error:
        raise RunError(
            f"the run at {shown} did not answer within {timeout_s:g} s; raise `--timeout`"
        ) from error
    except OSError as error:
        raise RunError(
            f"the run at {shown} cannot be reached: {error.strerror or error}; it may have ended, "
            "or have another address now"
        ) from error
    return joined


def where(host: str, port: int) -> str:
    """Return an address with its port.

    >>> where("ohio-0", 4711), where("fd00::1", 4711)
    ('ohio-0:4711', '[fd00::1]:4711')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Asks to join, at the first of the addresses that answers."""

    address: JoinAddress
    host: str
    versions: str
    until_s: float
    say: Callable[[str], object]

    def run(self) -> tuple[str, socket.socket] | None:
        """Return the last answer and the connection; None if the desk is busy, to try again.

        Raises:
            ConfigError: the run refuses the host.
            RunError: what listens is no run, or has another key.
            OSError: no address can be reached in time, or the connection is broken.
        """
        with ExitStack() as closed:
            connection = closed.enter_context(self._connection())
            lines = _Lines(connection, until_s=self.until_s)
            line = lines.next()
            challenge = word_of(line, Challenge)
            if challenge is None and (not line or word_of(line, Busy)):
                return None
            if challenge is None:
                shown = where(*connection.getpeername()[:2])
                raise RunError(f"what listens at {shown} is no run; take its newest `join.json`")
            request = JoinRequest(host=self.host, versions=self.versions, nonce=new_nonce())
            request = request.signed(self.address.secret, challenge)
            connection.sendall(line_of(request))
            if (text := self._answered(lines, request)) is None:
                return None
            closed.pop_all()
            connection.settimeout(None)
            return text, connection

    def sleep(self, seconds: float) -> None:
        """Wait before the next attempt.

        Raises:
            TimeoutError: there is no time left.
        """
        if time.monotonic() + seconds > self.until_s:
            raise TimeoutError
        time.sleep(seconds)

    def _connection(self) -> socket.socket:
        failures: list[OSError] = []
        hosts = (self.address.host, *self.address.others)
        for number, host in enumerate(hosts):
            left_s = self.until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            # The last address has all the time that is left, those before it a part.
            most_s = left_s if number == len(hosts) - 1 else min(left_s, _SECONDS_TO_CONNECT)
            try:
                return socket.create_connection((host, self.address.port), timeout=most_s)
            except OSError as error:
                failures.append(error)
            except UnicodeError:  # of a name that no name can be
                failures.append(OSError(f"{host!r:.80} is no name of a host"))
        raise failures[0]

    def _answered(self, lines: "_Lines", request: JoinRequest) -> str | None:
        while line := lines.next():
            if word_of(line, Busy):
                return None
            answer = word_of(line, Answer)
            if answer is None or not answer.is_signed(self.address.secret, request):
                raise RunError(
                    "the answer was not made with the key of the run; take its `join.json`"
                )
            if answer.kind is AnswerKind.REFUSED:
                raise ConfigError(answer.text)
            if answer.kind is AnswerKind.JOINED:
                return answer.text
            self.say(answer.text)
        raise RunError(
            "the run closed the connection: it has another key than `join.json`, or has ended"
        )


class _Lines:
    """The lines that arrive at a socket until a deadline; an empty one is its end."""

    def __init__(self, connection: socket.socket, *, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s
        self._heard = bytearray()

    def next(self) -> bytes:
        """Return the next line.

        Raises:
            TimeoutError: the deadline is over.
            OSError: the connection is broken.
        """
        while b"\n" not in self._heard and len(self._heard) <= MOST_BYTES:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            content = self._connection.recv(MOST_BYTES)
            if not content:
                return b""
            self._heard += content
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard = bytearray(rest)
        return line
