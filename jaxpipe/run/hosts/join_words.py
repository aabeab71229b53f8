"""What a host and the supervisor of a run say to each other when the host joins.

::

    supervisor ──► nonce
    host       ──► name, versions, a nonce of its own, code(key, nonce, ...)
    supervisor ──► answer, code(key, the host's nonce, answer)       once, and when it trains

Each word is a line of JSON. Both sides show that they have the key of the run, which never crosses
the network; a word that was recorded fits no other nonce. Nothing is secret but the key.

Source: RFC 2104, HMAC.
"""

import hmac
import json
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import parse_json, read_json, reason_of
from jaxpipe.topo.names import is_address, is_host_name

JOIN_FILE = "join.json"
"""The address and the key of a run, in its folder; anyone who can read it can join."""

MOST_BYTES = 4096
"""Of a word, or of the file."""

_LEAST_KEY_BYTES = 16
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAddress:
    """Where to join a run, and its key in hexadecimal digits.

    `others` are more addresses of the same desk, where its hosts are in several networks.
    """

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    key: str
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for host in (self.host, *self.others):
            if not is_host(host):
                raise ValueError(
                    f"`host` must be the name or the address of a host, not {host!r:.80}"
                )
        if len(self.secret) < _LEAST_KEY_BYTES:
            raise ValueError(f"`key` must have at least {2 * _LEAST_KEY_BYTES} hexadecimal digits")

    @property
    def secret(self) -> bytes:
        """The key."""
        return bytes.fromhex(self.key)


def new_key() -> str:
    """Return a key of 256 bits, in hexadecimal digits."""
    return secrets.token_hex(32)


def write_join_file(folder: Path, address: JoinAddress, *, name: str = JOIN_FILE) -> Path:
    """Write the file with which hosts join, for its owner's eyes only, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600, exist_ok=False)
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(address)))
    draft.replace(path)
    return path


def read_join_file(path: Path) -> JoinAddress:
    """Return where to join: from the folder of a run, or from a copy of its file.

    Raises:
        ConfigError: there is no such file, or it is another one.
    """
    file = path / JOIN_FILE if path.is_dir() else path
    rule = f"a run that hosts can join has a file `{JOIN_FILE}` in its folder"
    try:
        return read_json(file, JoinAddress, most_bytes=MOST_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{rule}: `RUN` is {str(path)!r:.80}: {reason_of(error)}; copy the file from the host "
            "of `jaxpipe run --hosts`"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{rule}: {str(file)!r:.80} is another file: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The first word of the supervisor."""

    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The last word to a connection that has to make room: the host tries again."""

    busy: Literal[True]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A host that would join: its name in the cluster, and the versions of its software."""

    host: str
    versions: str
    nonce: str
    code: str = ""

    def signed(self, key: bytes, challenge: Challenge) -> "JoinRequest":
        """Return the request with its code."""
        return replace(self, code=self._code(key, challenge))

    def is_signed(self, key: bytes, challenge: Challenge) -> bool:
        """Return whether a holder of the key has made this request for this challenge."""
        return is_same(self._code(key, challenge), self.code)

    def _code(self, key: bytes, challenge: Challenge) -> str:
        return code(key, "join", challenge.nonce, self.nonce, self.host, self.versions)


class AnswerKind(StrEnum):
    """What follows a request."""

    WAIT = "wait"
    """The host is a part of the next plan; another answer follows."""
    JOINED = "joined"
    """The host trains, or stands by."""
    REFUSED = "refused"
    """The run continues without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer to a request, in words for the terminal."""

    kind: AnswerKind
    text: str
    code: str = ""

    def signed(self, key: bytes, request: JoinRequest) -> "Answer":
        """Return the answer with its code."""
        return replace(self, code=self._code(key, request))

    def is_signed(self, key: bytes, request: JoinRequest) -> bool:
        """Return whether a holder of the key has made this answer to this request."""
        return is_same(self._code(key, request), self.code)

    def _code(self, key: bytes, request: JoinRequest) -> str:
        return code(key, "answer", request.nonce, self.kind.value, self.text)


def new_nonce() -> str:
    """Return a number that is used once, in hexadecimal digits."""
    return secrets.token_hex(16)


def code(key: bytes, *words: str) -> str:
    """Return the code of some words under a key.

    >>> code(b"key", "a", "bc") == code(b"key", "ab", "c")
    False
    """
    # As JSON, in which the borders between words are part of the text.
    return hmac.new(key, json.dumps(words).encode(), "sha256").hexdigest()


def is_same(one: str, other: str) -> bool:
    """Return whether two codes are the same, in a time that does not say where they differ.

    >>> is_same("a", "a"), is_same("a", "é")
    (True, False)
    """
    # As bytes: of text, the library compares ASCII alone.
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "surrogatepass"))


def is_host(text: str) -> bool:
    """Return whether a text is the name of a host, or its address.

    >>> [is_host(text) for text in ("ohio-0", "10.0.0.1", "fe80::1%eth0", "a b", "")]
    [True, True, True, False, False]
    """
    return is_address(text) or is_host_name(text)


def line_of(word: object) -> bytes:
    """Return a word as a line."""
    return msgspec.json.encode(word) + b"\n"


def word_of(line: bytes, kind: type[_T]) -> _T | None:
    """Return the word in a line; None if it is another one."""
    try:
        return parse_json(line, kind)
    except ValueError:
        return None
