"""Bytes of strangers cost the desk of a run nothing, and a hostile desk costs a host one line.

Each kind is tried with `JAXPIPE_PACKETS` packets, by default 50.
"""

import os
import random
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import msgspec
import pytest

from jaxpipe.errors import ConfigError, RunError
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_run import join_run
from jaxpipe.run.hosts.join_words import (
    MOST_BYTES,
    Answer,
    AnswerKind,
    Busy,
    Challenge,
    JoinAddress,
    JoinRequest,
    line_of,
    new_key,
    word_of,
)

PACKETS = int(os.environ.get("JAXPIPE_PACKETS", "50"))
KEY = new_key()
SECRET = bytes.fromhex(KEY)

Packet = Callable[[random.Random, Challenge], bytes]


def _request(**fields: object) -> bytes:
    usual = {"host": "a", "versions": "1", "nonce": "n", "code": "0" * 64}
    return msgspec.json.encode({**usual, **fields}) + b"\n"


def _flipped(lot: random.Random, challenge: Challenge) -> bytes:
    word = bytearray(
        line_of(JoinRequest(host="a", versions="1", nonce="n").signed(SECRET, challenge))
    )
    word[lot.randrange(len(word) - 1)] ^= 1 << lot.randrange(8)
    return bytes(word)


RECORDED = JoinRequest(host="a", versions="1", nonce="n").signed(SECRET, Challenge(nonce="other"))
PACKETS_OF: dict[str, Packet] = {
    "random bytes": lambda lot, _: lot.randbytes(lot.randrange(1, 200)) + b"\n",
    "a code that is not ASCII": lambda lot, _: _request(code=chr(lot.randrange(128, 0xD000))),
    "nested brackets": lambda lot, _: b"[" * lot.randrange(100, MOST_BYTES) + b"\n",
    "nested objects": lambda lot, _: b'{"host":' * lot.randrange(50, 500) + b"\n",
    "a name that is not UTF-8": lambda lot, _: _request(host="X").replace(b"X", lot.randbytes(9)),
    "a lone surrogate": lambda _, __: _request(host="X").replace(b"X", b"\\ud800"),
    "a line that never ends": lambda lot, _: b"x" * lot.randrange(1, 3 * MOST_BYTES),
    "nothing but ends": lambda lot, _: b"\n" * lot.randrange(1, 99),
    "other types": lambda lot, _: _request(host=lot.choice([None, 1, [], {}, True, 1e300])),
    "a number of many digits": lambda lot, _: b"9" * lot.randrange(400, MOST_BYTES) + b"\n",
    "several lines": lambda _, __: _request() * 3,
    "a zero byte": lambda _, __: _request(host="a\0b"),
    "another key": lambda lot, c: line_of(
        JoinRequest(host="a", versions="1", nonce="n").signed(lot.randbytes(32), c)
    ),
    "a request that was recorded": lambda _, __: line_of(RECORDED),
    "a request with a flipped bit": _flipped,
    "nothing": lambda _, __: b"",
}
AFTER: dict[str, Packet] = {
    "the request again": lambda _, c: line_of(
        JoinRequest(host="a", versions="1", nonce="n").signed(SECRET, c)
    ),
    "a name that is none": lambda lot, c: line_of(
        JoinRequest(host=f"\n\x1b{chr(lot.randrange(1, 0xD000))}", versions="1", nonce="n").signed(
            SECRET, c
        )
    ),
    "more than a word": lambda lot, _: b"x" * lot.randrange(1, 3 * MOST_BYTES),
}


def _abort(connection: socket.socket) -> None:
    """Close a connection such that the other side reads an error."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _attack(
    desk: JoinDesk, packet: Packet, lot: random.Random, *, first: bool
) -> list[JoinRequest]:
    """Send a packet, after a signed request unless it is the `first`; return what is taken."""
    there = socket.create_connection(("127.0.0.1", desk.port), timeout=5)
    taken = list(desk.poll())
    challenge = word_of(there.recv(MOST_BYTES), Challenge)
    assert challenge is not None
    if not first:
        there.sendall(
            line_of(JoinRequest(host="b", versions="1", nonce="n").signed(SECRET, challenge))
        )
        time.sleep(0.001)
        taken += desk.poll()
    with suppress(OSError):
        there.sendall(packet(lot, challenge))
    taken += desk.poll()
    (_abort if lot.random() < 0.5 else socket.socket.close)(there)
    return [*taken, *desk.poll()]


@pytest.mark.parametrize("kind", [*PACKETS_OF, *AFTER])
def test_no_packet_costs_the_desk_anything(kind: str) -> None:
    lot, first = random.Random(1), kind in PACKETS_OF
    packet = PACKETS_OF[kind] if first else AFTER[kind]
    with closing(JoinDesk(SECRET, addresses=["127.0.0.1"])) as desk:
        for _ in range(PACKETS):
            taken = _attack(desk, packet, lot, first=first)
            assert {request.host for request in taken} <= (set() if first else {"b"})
        desk.answer("b", AnswerKind.WAIT, "x" * 10_000)  # of those that have gone, none is left
        assert joined(desk) == "here"


def joined(desk: JoinDesk, *, within_s: float = 20.0) -> str:
    """Join as a host does while the desk is polled as a supervisor does."""
    address = JoinAddress(host="127.0.0.1", port=desk.port, key=KEY)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(
            join_run, address, host="mine", versions="1", timeout_s=within_s, say=print
        )
        while not there.done():
            for request in desk.poll():
                desk.answer(request.host, AnswerKind.JOINED, "here")
            time.sleep(0.01)
        return there.result()


@contextmanager
def many_files() -> Iterator[None]:
    """Allow this process enough open sockets for the body."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("this user may open too few files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_host_gets_in_beside_a_thousand_silent_connections_that_come_again() -> None:
    with many_files(), closing(JoinDesk(SECRET, addresses=["127.0.0.1"])) as desk:
        silent: list[socket.socket] = []
        full, ended = threading.Event(), threading.Event()

        def keep_coming() -> None:
            while not ended.is_set():
                while len(silent) < 1000:
                    with suppress(OSError):
                        silent.append(socket.create_connection(("127.0.0.1", desk.port), 5))
                full.set()
                for connection in silent[:]:
                    connection.setblocking(False)
                    with suppress(BlockingIOError, OSError):
                        while connection.recv(MOST_BYTES):
                            pass
                        silent.remove(connection)  # it was closed: another takes its turn
                        connection.close()
                time.sleep(0.1)

        attacker = threading.Thread(target=keep_coming)
        attacker.start()
        try:
            while not full.is_set():
                desk.poll()
                time.sleep(0.005)
            assert joined(desk) == "here"
        finally:
            ended.set()
            attacker.join()
            for connection in silent:
                connection.close()


def test_who_has_shown_the_key_makes_room_for_nobody() -> None:
    with many_files(), closing(JoinDesk(SECRET, addresses=["127.0.0.1"])) as desk:
        there = socket.create_connection(("127.0.0.1", desk.port), timeout=5)
        desk.poll()
        challenge = word_of(there.recv(MOST_BYTES), Challenge)
        assert challenge is not None
        request = JoinRequest(host="a", versions="1", nonce="n").signed(SECRET, challenge)
        there.sendall(line_of(request))
        time.sleep(0.05)
        others = [socket.create_connection(("127.0.0.1", desk.port), timeout=5) for _ in range(200)]
        assert desk.poll() == (request,)
        time.sleep(0.05)
        turned_away = sum(b"busy" in other.recv(MOST_BYTES) for other in others)
        assert turned_away == 200 - 32
        desk.answer("a", AnswerKind.JOINED, "here")
        answer = word_of(there.recv(MOST_BYTES), Answer)
        assert answer is not None
        assert answer.is_signed(SECRET, request)
        for connection in (there, *others):
            connection.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_hosts_join_over_ipv6_and_at_every_address() -> None:
    for addresses in (("::1",), ("",), ("127.0.0.1", "::1")):
        try:
            desk = JoinDesk(SECRET, addresses=addresses)
        except OSError:
            pytest.skip("this machine has no address of IPv6")
        with closing(desk), ThreadPoolExecutor(1) as pool:
            address = JoinAddress(host="::1", port=desk.port, key=KEY, others=("127.0.0.1",))
            there = pool.submit(
                join_run, address, host="mine", versions="1", timeout_s=20, say=print
            )
            while not there.done():
                for request in desk.poll():
                    desk.answer(request.host, AnswerKind.JOINED, "here")
                time.sleep(0.01)
            assert there.result() == "here"


def _answer(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "joined", "text": "a", "code": "0" * 64, **fields}) + b"\n"


CHALLENGE = line_of(Challenge(nonce="n"))
HOSTILE: dict[str, Callable[[random.Random], bytes]] = {
    "random bytes": lambda lot: lot.randbytes(200) + b"\n",
    "nested brackets": lambda _: b"[" * 3000 + b"\n",
    "a nonce of another type": lambda lot: b'{"nonce": %d}\n' % lot.randrange(99),
    "a nonce that is not UTF-8": lambda _: b'{"nonce": "\xff"}\n',
    "a line that never ends": lambda _: b"x" * 100_000,
    "an answer without the key": lambda _: CHALLENGE + _answer(),
    "a code that is not ASCII": lambda _: CHALLENGE + _answer(code="é"),
    "an answer of another kind": lambda _: CHALLENGE + _answer(kind="no"),
    "an answer of brackets": lambda _: CHALLENGE + b"[" * 3000 + b"\n",
    "an answer that is not UTF-8": lambda _: CHALLENGE + _answer(text="X").replace(b"X", b"\xff"),
    "an answer that never ends": lambda _: CHALLENGE + b"x" * 100_000,
    "an end after the challenge": lambda _: CHALLENGE,
    "nothing": lambda _: b"",
    "always busy": lambda _: line_of(Busy(busy=True)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_desk_costs_a_host_one_line(kind: str) -> None:
    lot, ended = random.Random(1), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                with suppress(OSError):
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.sendall(HOSTILE[kind](lot))
                        connection.settimeout(0.2)
                        connection.recv(MOST_BYTES)

        server = threading.Thread(target=serve)
        server.start()
        address = JoinAddress(host="127.0.0.1", port=listening.getsockname()[1], key=KEY)
        try:
            for _ in range(max(1, PACKETS // 25)):
                begin_s = time.monotonic()
                with pytest.raises((ConfigError, RunError), match="run"):
                    join_run(address, host="a", versions="1", timeout_s=0.5, say=print)
                assert time.monotonic() - begin_s < 5
        finally:
            ended.set()
            server.join()
