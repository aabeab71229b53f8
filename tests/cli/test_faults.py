"""What becomes of a run, started as a user starts it, whose ranks stop, die, differ or must end."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.process.launched_rank import launched_rank
from jaxpipe.runtime.watchdog import CauseKind, read_cause
from tests.cli.conftest import WriteConfig
from tests.helpers import mpi_command, mpi_environment
from tests.programs.stopped_rank import PLACE, VICTIMS

pytestmark = pytest.mark.mpi

REPOSITORY = Path(__file__).parents[2]
ENDLESS = {"steps": 100_000, "eval_every": 100_000}
STOPPED = ("--hooks", "tests.programs.stopped_rank:stopped")
SETTLED = 15
"""After how many steps a rank has learned how long they take."""


@contextmanager
def training(
    config: Path, *words: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    """Start a run of which nothing is left afterwards."""
    with subprocess.Popen(
        [sys.executable, "-m", "jaxpipe", "train", str(config), *words],
        cwd=REPOSITORY,
        env={**mpi_environment(), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
    assert_gone(config)


def wait_for_steps(folder: Path, *, steps: int = SETTLED) -> None:
    deadline = time.monotonic() + 200.0
    while len(read_metrics(folder / "metrics.jsonl")) < steps:
        assert time.monotonic() < deadline, "it does not train"
        time.sleep(0.1)


def stops(place: str, victims: tuple[int, ...]) -> dict[str, str]:
    """Return the environment of a run whose ranks stop at a place."""
    numbers = ",".join(map(str, victims))
    return {PLACE: place, VICTIMS: numbers, "PYTHONPATH": str(REPOSITORY)}


def rank_of(process: psutil.Process) -> int | None:
    here = launched_rank(process.environ())
    return None if here is None else here.rank


def ranks(config: Path) -> dict[int, psutil.Process]:
    """Return the processes of the ranks; launchers have no seat."""
    found = {rank_of(p): p for p in processes(config)}
    return {rank: process for rank, process in found.items() if rank is not None}


def processes(config: Path) -> list[psutil.Process]:
    everything = psutil.process_iter(["cmdline"])
    return [p for p in everything if str(config) in (p.info["cmdline"] or ())]


def assert_gone(config: Path) -> None:
    _, alive = psutil.wait_procs(processes(config), timeout=5.0)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_stopped_rank_is_named_and_the_job_ends(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    config = write_config(plan={"replicas": 1}, train=ENDLESS)
    with training(config) as process:
        wait_for_steps(tmp_path / "run")
        ranks(config)[1].send_signal(signal.SIGSTOP)
        _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, 2)
    cause = read_cause(tmp_path / "run")
    assert cause is not None, errors
    assert (cause.rank, cause.stage, cause.kind) == (1, 1, CauseKind.STOPPED), cause
    assert "jaxpipe: rank 1, stage 1, step " in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "victims"),
    [
        ("compile", (1,)),
        # No rank is left that could name them; a minute passes.
        pytest.param("compile", (0, 1), marks=pytest.mark.deep),
        ("compiled", (1,)),
        ("evaluate", (1,)),
        ("save-shards", (1,)),
    ],
)
def test_ranks_that_are_stopped_elsewhere_are_named(
    write_config: WriteConfig, tmp_path: Path, place: str, victims: tuple[int, ...]
) -> None:
    timeouts = {"startup_timeout_s": 60.0, "timeout_s": 12.0}
    often = {"train": {**ENDLESS, "eval_every": 5}, "checkpoint": {"every": 5}}
    config = write_config(plan={"replicas": 1}, run=timeouts, **often)
    with training(config, *STOPPED, environment=stops(place, victims)) as process:
        _, errors = process.communicate(timeout=200)
    assert process.returncode not in (0, 2), errors
    cause = read_cause(tmp_path / "run")
    assert cause is not None, errors
    assert (cause.rank, cause.kind) == (victims[0], CauseKind.STOPPED), cause
    for rank in victims:
        assert f"rank {rank} is stopped (process " in cause.message


@pytest.mark.slow
def test_a_rank_that_compiles_slowly_is_not_taken_for_dead(write_config: WriteConfig) -> None:
    """It sends no heartbeat for twice as long as the others wait before they look for its fault."""
    timeouts = {"startup_timeout_s": 120.0, "timeout_s": 10.0}
    config = write_config(plan={"replicas": 1}, run=timeouts, train={"steps": 2})
    with training(config, *STOPPED, environment=stops("slow", (1,))) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "slow, not stopped" in errors


def test_a_killed_rank_leaves_a_cause(write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(plan={"replicas": 1}, train=ENDLESS)
    with training(config) as process:
        wait_for_steps(tmp_path / "run", steps=1)
        ranks(config)[1].kill()
        process.communicate(timeout=60)
    assert process.returncode not in (0, 2)
    cause = read_cause(tmp_path / "run")
    assert cause is not None
    assert cause.kind is CauseKind.KILLED
    assert (cause.rank, cause.stage) in ((1, 1), (None, None)), cause  # MPICH does not know
    assert "signal 9 (SIGKILL)" in cause.message


def test_ranks_that_differ_are_refused(write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(plan={"replicas": 1})
    command = mpi_command(2, "-m", "tests.programs.differing_rank", str(config))
    job = subprocess.run(
        command, cwd=REPOSITORY, env=mpi_environment(), capture_output=True, text=True, check=False
    )
    assert job.returncode == 2
    assert job.stderr.count("`config.run.seed` is 99 on") == 1, job.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    cause = read_cause(tmp_path / "run")
    assert cause is not None
    assert cause.message.startswith("ConfigError: all ranks must run alike")
