"""No wait for another program is without a deadline; none of this needs root."""

import sys
import time
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.topo.emulate import commands, relay_engine
from jaxpipe.topo.emulate.commands import EmulationError, run
from jaxpipe.topo.emulate.network_spec import network_spec
from jaxpipe.topo.emulate.owner import this_process
from jaxpipe.topo.emulate.relay_engine import RelayEngine

SPEC = network_spec(topo.load("homogeneous:hosts=60"))  # longer than the buffer of a pipe
SLEEP = "exec sleep 600"


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program that is started as the relay, which may answer for 0.3 s."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(relay_engine, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(relay_engine, "ip_batch", lambda *_, **__: None)
    return tmp_path / "python"


def write_script(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 0.2)
    start_s = time.monotonic()
    with pytest.raises(EmulationError, match=r"`sleep 600` did not end in 0\.2 s"):
        run("sleep", "600")
    assert time.monotonic() - start_s < 60


@pytest.mark.parametrize(
    "script", [SLEEP, f"head -c 10 > /dev/null; {SLEEP}", f"printf re; {SLEEP}"]
)
def test_a_relay_that_does_not_start_is_killed(relay: Path, script: str) -> None:
    write_script(relay, script)
    with pytest.raises(EmulationError, match=r"did not start: it did not answer within 0\.3 s"):
        RelayEngine(this_process(), SPEC)


def test_a_relay_that_stops_answering_is_killed(
    relay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(relay, f"read spec; echo ready; {SLEEP}")
    with monkeypatch.context() as patient:  # a shell needs more than 0.3 s on a busy machine
        patient.setattr(relay_engine, "TIMEOUT_S", 30.0)
        engine = RelayEngine(this_process(), SPEC)
    with pytest.raises(EmulationError, match=r"has ended: it did not answer within 0\.3 s"):
        engine.passed()
    engine.close()


def test_a_relay_that_fails_says_why(relay: Path) -> None:
    write_script(relay, "echo no such device >&2; exit 1")
    with pytest.raises(EmulationError, match="the relay did not start: no such device"):
        RelayEngine(this_process(), SPEC)
