"""A host joins with the key of the run, and nobody else does."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError, RunError
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_run import join_run
from jaxpipe.run.hosts.join_words import (
    AnswerKind,
    Challenge,
    JoinAddress,
    JoinRequest,
    line_of,
    new_key,
    read_join_file,
    word_of,
    write_join_file,
)

KEY = new_key()


def requested(desk: JoinDesk, *, within_s: float = 10.0) -> JoinRequest:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if found := desk.poll():
            return found[0]
        time.sleep(0.005)
    raise AssertionError("nobody asked")


def joined(desk: JoinDesk, said: list[str], *, key: str = KEY, timeout_s: float = 20) -> str:
    address = JoinAddress(host="127.0.0.1", port=desk.port, key=key)
    return join_run(address, host="ohio-1", versions="1", timeout_s=timeout_s, say=said.append)


def test_a_host_asks_waits_and_takes_part():
    said: list[str] = []
    desk = JoinDesk(bytes.fromhex(KEY), addresses=["127.0.0.1"])
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(joined, desk, said)
        request = requested(desk)
        assert (request.host, request.versions) == ("ohio-1", "1")
        assert desk.poll() == ()  # once
        desk.answer("ohio-0", AnswerKind.REFUSED, "another host")
        desk.answer("ohio-1", AnswerKind.WAIT, "soon")
        desk.answer("ohio-1", AnswerKind.JOINED, "since step 7")
        assert there.result(20) == "since step 7"
    assert said == ["soon"]
    desk.close()


def test_a_refusal_is_an_error_of_the_host():
    desk = JoinDesk(bytes.fromhex(KEY), addresses=["127.0.0.1"])
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(joined, desk, [])
        requested(desk)
        desk.answer("ohio-1", AnswerKind.REFUSED, "no such host")
        with pytest.raises(ConfigError, match="no such host"):
            there.result(20)
    desk.close()


def test_another_key_opens_nothing_and_is_found_by_both_sides():
    desk = JoinDesk(bytes.fromhex(KEY), addresses=["127.0.0.1"])
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(joined, desk, [], key=new_key())
        with pytest.raises(AssertionError, match="nobody asked"):
            requested(desk, within_s=0.5)
        with pytest.raises(RunError, match="another key"):
            there.result(20)
    desk.close()


def test_a_recorded_request_fits_no_other_challenge():
    request = JoinRequest(host="a", versions="1", nonce="n")
    key = bytes.fromhex(KEY)
    signed = request.signed(key, Challenge(nonce="one"))
    assert signed.is_signed(key, Challenge(nonce="one"))
    assert not signed.is_signed(key, Challenge(nonce="two"))
    assert not signed.is_signed(b"other", Challenge(nonce="one"))


@pytest.mark.parametrize("word", [b"\n", b"{}\n", b"x" * 5000, b'{"host": 3}\n'])
def test_callers_that_say_anything_else_are_dropped(word: bytes) -> None:
    desk = JoinDesk(bytes.fromhex(KEY), addresses=["127.0.0.1"])
    with socket.create_connection(("127.0.0.1", desk.port), timeout=5) as there:
        with pytest.raises(AssertionError, match="nobody asked"):
            requested(desk, within_s=0.1)
        assert word_of(there.recv(4096), Challenge) is not None
        there.sendall(word)
        with pytest.raises(AssertionError, match="nobody asked"):
            requested(desk, within_s=0.1)
        with suppress(ConnectionResetError):  # it was dropped before it was read to its end
            assert there.recv(1) == b""
    desk.close()


def test_silent_callers_are_dropped_in_time_and_do_not_keep_others_out():
    now_s = [0.0]
    desk = JoinDesk(bytes.fromhex(KEY), addresses=["127.0.0.1"], clock=lambda: now_s[0])
    silent = [socket.create_connection(("127.0.0.1", desk.port), timeout=5) for _ in range(16)]
    with pytest.raises(AssertionError):
        requested(desk, within_s=0.1)
    now_s[0] = 11.0
    desk.poll()
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(joined, desk, [])
        requested(desk)
        desk.answer("ohio-1", AnswerKind.JOINED, "here")
        assert there.result(20) == "here"
    for each in silent:
        each.close()
    desk.close()


def test_a_supervisor_that_does_not_answer_costs_no_more_than_the_deadline():
    desk = JoinDesk(bytes.fromhex(KEY), addresses=["127.0.0.1"])
    with pytest.raises(RunError, match=r"did not answer within 0\.2 s"):
        joined(desk, [], timeout_s=0.2)
    desk.close()
    with pytest.raises(RunError, match="cannot be reached"):
        join_run(
            JoinAddress(host="127.0.0.1", port=9, key=KEY),
            host="a",
            versions="",
            timeout_s=5,
            say=print,
        )


def test_the_file_is_the_owners_and_a_copy_does_as_well(tmp_path: Path) -> None:
    address = JoinAddress(host="ohio-0", port=4711, key=KEY)
    path = write_join_file(tmp_path / "run", address)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_join_file(tmp_path / "run") == read_join_file(path) == address
    (tmp_path / "other").write_text("{}")
    with pytest.raises(ConfigError, match="is another file"):
        read_join_file(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"`join\.json` in its folder"):
        read_join_file(tmp_path / "nowhere")


def test_words_are_read_as_they_were_written():
    request = JoinRequest(host="a", versions="1", nonce="n").signed(b"k", Challenge(nonce="c"))
    assert word_of(line_of(request), JoinRequest) == request
