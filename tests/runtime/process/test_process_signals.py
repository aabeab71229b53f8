"""A signal that is held back from a child is seen, and received once.

Children are started from a process without threads, which must not fork.
"""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxpipe.runtime.process.process_signals import kill_with_descendants, shows_pending_signals
from jaxpipe.runtime.watchdog.process_state import ProcessState, process_state

pytestmark = pytest.mark.skipif(
    not shows_pending_signals(), reason="only Linux tells which signals wait"
)

REPOSITORY = Path(__file__).parents[3]
WAITS = """
import signal, subprocess
from functools import partial
from jaxpipe.runtime.process.process_signals import block_signal, is_pending

with subprocess.Popen(["sleep", "20"], preexec_fn=partial(block_signal, signal.SIGTERM)) as child:
    assert not is_pending(child.pid, signal.SIGTERM)
    child.terminate()
    assert is_pending(child.pid, signal.SIGTERM)
    assert not is_pending(child.pid, signal.SIGUSR1)
    child.kill()
assert not is_pending(child.pid, signal.SIGTERM)
"""
STOPS_WHEN_TOLD = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
Path(sys.argv[1]).touch()
time.sleep(20)
"""
RUNS_A_CHILD = """
import os, signal, sys, threading, time
from pathlib import Path
from jaxpipe.runtime.process.mpirun import run_child

def terminate_child():
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        os.kill(int(child), signal.SIGTERM)

threading.Thread(target=terminate_child, daemon=True).start()
command = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
raise SystemExit(run_child(command, first_signal=signal.SIGUSR1, blocks_sigterm=True))
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_held_signal_waits() -> None:
    done = run(WAITS)
    assert done.returncode == 0, done.stderr


def test_a_child_is_asked_to_stop_in_place_of_being_ended(tmp_path: Path) -> None:
    done = run(RUNS_A_CHILD, STOPS_WHEN_TOLD, str(tmp_path / "ready"))
    assert done.returncode == 143, done.stderr


def test_what_a_process_has_started_is_killed_with_it_whatever_its_group() -> None:
    # As `mpirun` and its ssh: the grandchild has a group and a session of its own.
    inner = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        kill_with_descendants(process.pid)
        assert process.wait(10) == -signal.SIGKILL
        assert process.stdout.read() == b""  # it ends when the last holder of the pipe is gone
    # Its pipe is closed before it is dead.
    until_s = time.monotonic() + 10.0
    while process_state(grandchild, socket.gethostname()) is not ProcessState.GONE:
        assert time.monotonic() < until_s
        time.sleep(0.01)
