"""An outer loop over MPI, as a user starts it: the bits of threads, resumed after a stop."""

import os
import signal
from pathlib import Path

import pytest

from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.metrics.records import read_metrics
from tests.cli.conftest import WriteConfig
from tests.cli.test_runs import JAXPIPE, run
from tests.cli.test_stop import started, wait_for_step
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.mpi

OUTER = {"islands": 2, "every": 2, "codec": "int8", "delay": 1, "local_fraction": 0.5}


def test_mpi_and_threads_train_the_same_bits(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    plan = {"stages": 1, "replicas": 2}
    threads = run_tree(tiny_tree(tmp_path / "threads", dataset, plan=plan, outer=OUTER))
    job = run([*JAXPIPE, "train", str(write_config(plan=plan, outer=OUTER))])
    assert job.returncode == 0, job.stderr
    found = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for name in ("loss", "eval_loss", "outer_bytes"):
        assert [getattr(m, name) for m in found] == [getattr(m, name) for m in threads]


def test_a_stop_takes_effect_where_the_islands_meet(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    config = write_config(
        plan={"stages": 1, "replicas": 2},
        outer={"islands": 2, "every": 5},
        train={"steps": 100_000, "eval_every": 100_000},
        checkpoint={"every": 100_000},
    )
    with started("train", str(config)) as job:
        wait_for_step(tmp_path / "run", 2)
        os.killpg(job.pid, signal.SIGINT)
        output, errors = job.communicate(timeout=60)
    assert job.returncode == 130, errors
    step = open_checkpoint(latest(tmp_path / "run")).step
    assert step % 5 == 0
    assert f"stopped on request after step {step}/100000\n" in output
