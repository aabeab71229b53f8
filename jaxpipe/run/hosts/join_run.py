"""Join a run from a new host: ask its supervisor, and wait until the host takes part."""

import socket
import time
from collections.abc import Callable

from jaxpipe.errors import ConfigError, RunError
from jaxpipe.run.hosts.join_words import (
    MOST_BYTES,
    Answer,
    AnswerKind,
    Challenge,
    JoinAddress,
    JoinRequest,
    line_of,
    new_nonce,
    word_of,
)


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
    where = f"{address.host}:{address.port}"
    deadline_s = time.monotonic() + timeout_s
    try:
        with socket.create_connection((address.host, address.port), timeout=timeout_s) as there:
            lines = _Lines(there, deadline_s=deadline_s)
            challenge = word_of(lines.next(), Challenge)
            if challenge is None:
                raise RunError(f"what listens at {where} is no run; take its newest `join.json`")
            request = JoinRequest(host=host, versions=versions, nonce=new_nonce())
            request = request.signed(address.secret, challenge)
            there.sendall(line_of(request))
            return _answered(lines, request, address, say=say)
    except TimeoutError as error:
        raise RunError(
            f"the run at {where} did not answer within {timeout_s:g} s; raise `--timeout`"
        ) from error
    except OSError as error:
        raise RunError(
            f"the run at {where} cannot be reached: {error.strerror or error}; it may have ended, "
            "or have another address now"
        ) from error


def _answered(
    lines: "_Lines", request: JoinRequest, address: JoinAddress, *, say: Callable[[str], object]
) -> str:
    while line := lines.next():
        answer = word_of(line, Answer)
        if answer is None or not answer.is_signed(address.secret, request):
            raise RunError("the answer was not made with the key of the run; take its `join.json`")
        if answer.kind is AnswerKind.REFUSED:
            raise ConfigError(answer.text)
        if answer.kind is AnswerKind.JOINED:
            return answer.text
        say(answer.text)
    raise RunError(
        "the run closed the connection: it has another key than `join.json`, or has ended"
    )


class _Lines:
    """The lines that arrive at a socket until a deadline; an empty one is its end."""

    def __init__(self, connection: socket.socket, *, deadline_s: float) -> None:
        self._connection = connection
        self._deadline_s = deadline_s
        self._heard = bytearray()

    def next(self) -> bytes:
        """Return the next line.

        Raises:
            TimeoutError: the deadline is over.
            OSError: the connection is broken.
        """
        while b"\n" not in self._heard and len(self._heard) <= MOST_BYTES:
            left_s = self._deadline_s - time.monotonic()
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
