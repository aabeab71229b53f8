"""A rank hears that it is to stop, and does not wait for ranks that are gone."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpipe.run.rank.signals import stop_on_signal
from jaxpipe.runtime.watchdog import Deadlines, Seen, Watchdog, read_heartbeats

GONE = 2**22 + 1
"""Above what Linux gives to processes."""
RANK = """
import sys, threading
from pathlib import Path
from tests.run.rank.test_signals import watch_of
from jaxpipe.run.rank.signals import stop_on_signal
watch = watch_of(Path(sys.argv[1]))
watch.start()
if sys.argv[2] != "compiles":
    watch.phase("read samples", step=0)
if sys.argv[2] == "is saved":
    watch.finish()
with stop_on_signal(lambda: watch, is_launched=sys.argv[3] == "launched") as received:
    print("ready", flush=True)
    for _ in range(200):
        if received and sys.argv[2] == "is saved":
            break
        if watch.stop_requested and sys.argv[2] != "blocks":
            break
        threading.Event().wait(0.1)
watch.stop()
sys.exit(7 if watch.stop_requested else 0)
"""


def watch_of(folder: Path) -> Watchdog:
    seen = Seen(rank=0, stage=0, num_ranks=2, folder=folder, waits_for=lambda _: ())
    return Watchdog(seen, Deadlines(least_s=60.0, unlearned_s=60.0), end=print)


def write_pulse_of_rank_1(folder: Path, *, process: int, host: str) -> None:
    watch = watch_of(folder)
    watch.start()
    pulse = (folder / "watch" / "rank-0.json").read_text()
    watch.stop()
    said = pulse.replace('"rank":0', '"rank":1')
    said = said.replace(f'"process":{os.getpid()}', f'"process":{process}')
    said = said.replace(f'"host":"{socket.gethostname()}"', f'"host":"{host}"')
    (folder / "watch" / "rank-1.json").write_text(said)
    assert read_heartbeats(folder, range(2))[1].process == process


@pytest.mark.parametrize(
    ("process", "host", "is_lost"),
    [
        (os.getpid(), socket.gethostname(), False),
        (GONE, socket.gethostname(), True),
        (GONE, "another-host", False),
    ],
    ids=["alive", "gone", "elsewhere"],
)
def test_ranks_that_are_gone_are_noticed(
    tmp_path: Path, process: int, host: str, is_lost: bool
) -> None:
    assert not watch_of(tmp_path).has_lost_a_rank()
    write_pulse_of_rank_1(tmp_path, process=process, host=host)
    assert watch_of(tmp_path).has_lost_a_rank() == is_lost


@pytest.mark.parametrize(
    ("number", "state", "lost", "code"),
    [
        (signal.SIGTERM, "trains", False, 7),
        (signal.SIGUSR1, "compiles", False, 7),
        (signal.SIGTERM, "compiles", False, 1),
        (signal.SIGTERM, "trains", True, 1),
        (signal.SIGINT, "trains", False, 7),
        (signal.SIGINT, "compiles", False, 1),
        (signal.SIGTERM, "is saved", False, 0),
        (signal.SIGINT, "is saved", False, 0),
    ],
)
def test_a_rank_ends_or_stops_after_its_step(
    tmp_path: Path, number: int, state: str, lost: bool, code: int
) -> None:
    if lost:
        write_pulse_of_rank_1(tmp_path, process=GONE, host=socket.gethostname())
    with started_rank(tmp_path, state, "launched") as rank:
        rank.send_signal(number)
        assert rank.wait(30) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_without_launcher_exits_with_the_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started_rank(tmp_path, "compiles", "alone") as rank:
        rank.send_signal(number)
        assert rank.wait(30) == 128 + number


def test_a_second_interrupt_ends_a_rank_at_once(tmp_path: Path) -> None:
    with started_rank(tmp_path, "blocks", "alone") as rank:
        rank.send_signal(signal.SIGINT)
        time.sleep(0.8)
        assert rank.poll() is None
        rank.send_signal(signal.SIGINT)
        assert rank.wait(5) == 130


def started_rank(folder: Path, state: str, launcher: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", RANK, str(folder), state, launcher]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"
    return rank


def test_handlers_are_as_before_afterwards(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    watch = watch_of(tmp_path)
    with stop_on_signal(lambda: watch):
        os.kill(os.getpid(), signal.SIGUSR1)
        deadline_s = time.monotonic() + 20
        while not watch.stop_requested and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert watch.stop_requested
    assert signal.getsignal(signal.SIGUSR1) is before
