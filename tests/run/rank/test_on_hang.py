"""A rank that holds up ranks which survive each other is killed; or the job ends."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.run.rank import on_hang as held_up
from jaxpipe.run.rank.on_hang import Killed, OnHang, kill_rank
from jaxpipe.runtime.watchdog import Cause, CauseKind, Heartbeat
from jaxpipe.runtime.watchdog.heartbeat import heartbeat_file, write_heartbeat

STOPPED = Cause(kind=CauseKind.STOPPED, message="it gives no sign of life", rank=2)


@pytest.fixture
def rank_2(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that has said to be rank 2, and is stopped."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        process.send_signal(signal.SIGSTOP)
        tell(tmp_path, process.pid, host=socket.gethostname())
        yield process
        process.kill()


def tell(folder: Path, process: int, *, host: str) -> None:
    path = heartbeat_file(folder, 2)
    path.parent.mkdir(exist_ok=True)
    write_heartbeat(
        path,
        Heartbeat(
            rank=2,
            stage=0,
            step=3,
            doing="update",
            waits_for=(),
            overdue=True,
            beat=9,
            process=process,
            host=host,
        ),
        num_ranks=3,
    )


def test_one_of_this_host_is_killed(
    tmp_path: Path, rank_2: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[Cause] = []
    OnHang(tmp_path, end=ended.append)(STOPPED)
    assert rank_2.wait(10) == -signal.SIGKILL
    assert not ended
    assert capsys.readouterr().err == (
        "jaxpipe: rank 2: stopped: it gives no sign of life; killed so that the others continue\n"
    )
    assert kill_rank(tmp_path, 2) is Killed.BEFORE


def test_one_of_another_host_is_left_to_its_neighbours_and_then_the_job_ends(
    tmp_path: Path, rank_2: subprocess.Popen[bytes]
) -> None:
    tell(tmp_path, rank_2.pid, host="elsewhere")
    ended: list[Cause] = []
    times_s = iter((100.0, 104.9, 105.1))
    look = OnHang(tmp_path, end=ended.append, clock=lambda: next(times_s))
    look(STOPPED)
    look(STOPPED)
    assert (ended, rank_2.poll()) == ([], None)
    look(STOPPED)
    assert (ended, rank_2.poll()) == ([STOPPED], None)


def test_another_rank_is_waited_for_anew(tmp_path: Path) -> None:
    ended: list[Cause] = []
    times_s = iter((100.0, 200.0, 205.1))
    look = OnHang(tmp_path, end=ended.append, clock=lambda: next(times_s))
    look(STOPPED)
    other = replace(STOPPED, step=7)
    look(other)
    assert not ended
    look(other)
    assert ended == [other]


def test_nobody_is_killed_for_a_cut_link_or_without_a_heartbeat(tmp_path: Path) -> None:
    ended: list[Cause] = []
    cut = Cause(kind=CauseKind.LINK, message="messages do not arrive")
    times_s = iter((100.0, 105.1))
    look = OnHang(tmp_path, end=ended.append, clock=lambda: next(times_s))
    look(cut)
    assert ended == []  # the host may be gone: its ranks are then lost
    look(cut)
    assert ended == [cut]
    assert kill_rank(tmp_path, 2) is Killed.NOT


def test_the_process_of_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(process: int, number: int) -> None:
        raise PermissionError(process, number)

    tell(tmp_path, os.getpid(), host=socket.gethostname())
    monkeypatch.setattr(held_up.os, "kill", refuse)
    assert kill_rank(tmp_path, 2) is Killed.NOT
