"""Ctrl-C and SIGTERM to a run as a user starts it: a checkpoint, or an immediate end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.metrics.records import read_metrics
from tests.cli.conftest import WriteConfig
from tests.helpers import mpi_environment

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.mpi
_PROGRESS = ("compiling the stages: ", "starting the ranks, ")


@contextmanager
def started(*words: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a command in a process group of its own, as a shell does; no test leaves one behind."""
    job = subprocess.Popen(
        [sys.executable, "-m", "jaxpipe", *words],
        cwd=REPOSITORY,
        env=mpi_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            # A second request ends the job at once, without a checkpoint.
            for _ in range(2):
                job.send_signal(signal.SIGTERM)
                time.sleep(1.0)
            job.kill()


def wait_for_step(folder: Path, step: int) -> None:
    deadline_s = time.monotonic() + 120.0
    while time.monotonic() < deadline_s:
        metrics = read_metrics(folder / "metrics.jsonl")
        if metrics and metrics[-1].step >= step:
            return
        time.sleep(0.1)
    raise AssertionError(f"step {step} was not reached")


@pytest.mark.parametrize(("command", "number"), [("train", signal.SIGINT), ("run", signal.SIGTERM)])
def test_a_request_saves_after_the_step_and_names_the_next_command(
    command: str, number: signal.Signals, write_config: WriteConfig, tmp_path: Path
) -> None:
    config = write_config(plan={"replicas": 1}, train={"steps": 100_000, "eval_every": 100_000})
    with started(command, str(config)) as job:
        wait_for_step(tmp_path / "run", 2)
        if command == "train":
            with started("train", str(config), "--resume") as second:
                _, refusal = second.communicate(timeout=60)
            assert second.returncode == 2
            assert refusal.startswith("jaxpipe: a folder has one run at a time: `run.folder`")
            os.killpg(job.pid, number)  # as a terminal does
        else:
            job.send_signal(number)
        output, errors = job.communicate(timeout=60)
    assert job.returncode == 128 + number, errors
    # On a busy machine a start that takes long shows its progress.
    assert [line for line in errors.splitlines() if not line.startswith(_PROGRESS)] == []
    step = open_checkpoint(latest(tmp_path / "run")).step
    # A supervisor says itself why its attempt has ended.
    stopped = "stopped" if command == "run" else "stopped on request"
    assert f"\n{stopped} after step {step}/100000\n" in output
    assert f"next: jaxpipe {command} {config} --resume" in output
    left = {path.name for path in (tmp_path / "run" / "watch").iterdir()}
    assert left == {"start-0.json", "start-1.json"}  # which process a rank was
    assert not (tmp_path / "run" / "lock").exists()


def test_sigterm_during_start_up_ends_the_run_with_143(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    with started("train", str(write_config(plan={"replicas": 1}))) as job:
        deadline_s = time.monotonic() + 60.0
        while not (tmp_path / "run" / "plan.toml").exists() and time.monotonic() < deadline_s:
            time.sleep(0.02)
        time.sleep(1.0)  # until the ranks import jax
        job.send_signal(signal.SIGTERM)
        output, errors = job.communicate(timeout=30)
    assert job.returncode == 143, errors
    assert "stopped on request before the first step" in output
    assert "signal 10" not in errors
    assert not (tmp_path / "run" / "cause.json").exists()
