"""Requests to terminate: the first asks a child to stop in order, the second ends it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpipe.runtime.process import mpirun
from jaxpipe.runtime.process.mpirun import Wish, recorded_signals, run_child

REPOSITORY = Path(__file__).parents[3]
CHILD = """
import signal, sys, time
from pathlib import Path
folder, stops = Path(sys.argv[1]), sys.argv[2] == "stops"

def stop(number, _):
    (folder / "asked").write_text(signal.Signals(number).name)
    if stops:
        sys.exit(0)

signal.signal(signal.SIGUSR1, stop)
signal.signal(signal.SIGINT, lambda *_: (folder / "interrupted").touch())
(folder / "ready").touch()
while True:
    time.sleep(0.05)
"""
PARENT = """
import signal, sys
from pathlib import Path
from jaxpipe.runtime.process.mpirun import run_child
child, folder, stops, can_stop = sys.argv[1:]
command = [sys.executable, "-c", child, folder, stops]
can_stop = (Path(folder) / can_stop).exists
raise SystemExit(run_child(command, first_signal=signal.SIGUSR1, can_stop=can_stop))
"""


def started(folder: Path, stops: str, *, can_stop: bool) -> "subprocess.Popen[bytes]":
    """Start a parent with its child, in a process group of its own as a shell's job is."""
    when = "ready" if can_stop else "never"
    command = [sys.executable, "-c", PARENT, CHILD, str(folder), stops, when]
    parent = subprocess.Popen(command, cwd=REPOSITORY, process_group=0)
    wait_for(folder / "ready")
    return parent


def wait_for(file: Path) -> None:
    deadline_s = time.monotonic() + 20.0
    while not file.exists():
        assert time.monotonic() < deadline_s, file
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a worker may have JAX's threads
@pytest.mark.parametrize(
    ("wish", "signals", "code"),
    [(Wish.STOP, ["SIGUSR1"], 7), (Wish.END, ["SIGTERM"], 1), (Wish.KILL, [], 1)],
)
def test_a_child_stops_ends_or_is_gone_as_its_caller_wishes(
    tmp_path: Path, wish: Wish, signals: list[str], code: int
):
    program = f"""
import signal, sys, time
from pathlib import Path

def end(number, _):
    with Path({str(tmp_path / "got")!r}).open("a") as file:
        file.write(signal.Signals(number).name + " ")
    time.sleep(0.4)  # the wish comes again meanwhile
    sys.exit(7)

signal.signal(signal.SIGUSR1, end)
signal.signal(signal.SIGTERM, end)
Path({str(tmp_path / "ready")!r}).touch()
time.sleep(60)
"""

    def poll() -> Wish | None:
        return wish if (tmp_path / "ready").exists() else None

    found = run_child([sys.executable, "-c", program], first_signal=signal.SIGUSR1, poll=poll)
    assert found == code
    got = (tmp_path / "got").read_text().split() if signals else []
    assert got == signals


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a worker may have JAX's threads
@pytest.mark.parametrize(
    ("ignored", "code"), [("", 1), ("SIGTERM", 1)], ids=["it ends", "it ignores signals"]
)
def test_poll_ends_a_child_that_does_not_end(
    ignored: str, code: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mpirun, "_SECONDS_TO_END", 0.5)
    program = f"""
import signal, time
for name in {ignored.split()}:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
time.sleep(60)
"""
    begin_s = time.monotonic()

    def is_overdue() -> bool:
        return time.monotonic() - begin_s > 1.0

    assert run_child([sys.executable, "-c", program], poll=is_overdue) == code
    assert time.monotonic() - begin_s < 30.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_process_group_stops_the_child_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    parent = started(tmp_path, "stops", can_stop=True)
    os.killpg(parent.pid, number)  # as a terminal does on Ctrl-C
    assert parent.wait(20) == 128 + number
    assert (tmp_path / "asked").read_text() == "SIGUSR1"
    assert not (tmp_path / "interrupted").exists()


def test_a_second_interrupt_ends_a_child_that_does_not_stop(tmp_path: Path) -> None:
    parent = started(tmp_path, "continues", can_stop=True)
    parent.send_signal(signal.SIGINT)
    parent.send_signal(signal.SIGINT)  # within 0.5 s: GNU `timeout` sends each signal twice
    wait_for(tmp_path / "asked")
    time.sleep(0.8)
    assert parent.poll() is None
    parent.send_signal(signal.SIGINT)
    assert parent.wait(5) == 130


def test_a_child_with_nothing_to_save_is_ended_at_once(tmp_path: Path) -> None:
    parent = started(tmp_path, "stops", can_stop=False)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(5) == 143
    assert not (tmp_path / "asked").exists()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with recorded_signals() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
        assert [number for number, _ in received] == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_is_not_suspended_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(tmp_path), "stops", "ready"]
    parent = subprocess.Popen(command, cwd=REPOSITORY, process_group=0, stderr=subprocess.PIPE)
    assert parent.stderr is not None
    wait_for(tmp_path / "ready")
    os.killpg(parent.pid, signal.SIGTSTP)  # as a terminal does on Ctrl-Z
    assert parent.stderr.readline() == b"\n"
    assert b"cannot be suspended, and continues; Ctrl-C saves" in parent.stderr.readline()
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(20) == 143  # a suspended one would not end
    parent.stderr.close()
