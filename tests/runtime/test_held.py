"""A signal that is held back from a child is seen, and told once."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from jaxpipe.runtime.held import call_when_held, can_hold, hold, is_held
from jaxpipe.runtime.launch import run_child

pytestmark = pytest.mark.skipif(not can_hold(), reason="only Linux tells which signals wait")

STOPS_WHEN_TOLD = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
Path(sys.argv[1]).touch()
time.sleep(20)
"""
TERMINATES = """
import os, signal, subprocess, sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
children = Path(f"/proc/{sys.argv[2]}/task/{sys.argv[2]}/children").read_text().split()
named = [int(pid) for pid in children if sys.argv[1] in Path(f"/proc/{pid}/cmdline").read_text()]
for pid in named:
    if pid != os.getpid():
        os.kill(pid, signal.SIGTERM)
"""


def test_a_held_signal_waits() -> None:
    block = partial(hold, signal.SIGTERM)
    with subprocess.Popen(["sleep", "20"], preexec_fn=block) as child:  # noqa: PLW1509
        told: list[int] = []
        ended = call_when_held(child.pid, signal.SIGTERM, told.append)
        assert not is_held(child.pid, signal.SIGTERM)
        child.terminate()
        assert is_held(child.pid, signal.SIGTERM)
        assert not is_held(child.pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + 10.0
        while not told and time.monotonic() < deadline_s:
            time.sleep(0.01)
        ended.set()
        child.kill()
    assert told == [signal.SIGTERM]
    assert not is_held(child.pid, signal.SIGTERM)


def test_a_child_is_told_to_stop_in_place_of_being_ended(tmp_path: Path) -> None:
    ready = str(tmp_path / "ready")
    with subprocess.Popen([sys.executable, "-c", TERMINATES, ready, str(os.getpid())]):
        command = [sys.executable, "-c", STOPS_WHEN_TOLD, ready]
        code = run_child(command, first_signal=signal.SIGUSR1, holds_sigterm=True)
    assert code == 128 + signal.SIGTERM
