"""`jaxpipe run` with checkpoints on an S3 server: a rank is killed, and no bit is lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxpipe.runtime.metrics.records import read_metrics
from tests.cli.conftest import WriteConfig
from tests.cli.test_faults import assert_gone, ranks, wait_for_steps
from tests.helpers import mpi_environment
from tests.runtime.training import run_tree, tiny_tree
from tests.s3_server import BUCKET, s3_server

REPOSITORY = Path(__file__).parents[2]
SECTIONS = {"plan": {"replicas": 1}, "train": {"steps": 60, "eval_every": 60}}


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.deep  # a run that resumes from a store: tests/runtime/test_train_stored.py
def test_a_killed_rank_costs_no_bit(
    write_config: WriteConfig, tmp_path: Path, dataset: Path
) -> None:
    local = run_tree(tiny_tree(tmp_path / "local", dataset, **SECTIONS))
    url = f"s3://{BUCKET}/run"
    config = write_config(**SECTIONS, checkpoint={"every": 5, "folder": url})
    with s3_server():
        os.environ["AWS_SECRET_ACCESS_KEY"] = "not-in-any-file"
        with subprocess.Popen(
            [sys.executable, "-m", "jaxpipe", "run", str(config)],
            cwd=REPOSITORY,
            env=mpi_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                wait_for_steps(tmp_path / "run", steps=12)
                ranks(config)[1].send_signal(signal.SIGKILL)
                output, _ = process.communicate(timeout=200.0)
            finally:
                process.kill()
    assert_gone(config)
    assert process.returncode == 0, output
    assert f"from {url}/step-" in output
    assert "attempt 2 is done" in output
    found = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(m.step, m.loss, m.grad_norm) for m in found] == [
        (m.step, m.loss, m.grad_norm) for m in local
    ]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if b"not-in-any-file" in path.read_bytes()]
    assert "not-in-any-file" not in output
    assert not (tmp_path / "run" / "checkpoints").exists()
