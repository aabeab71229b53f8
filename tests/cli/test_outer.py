"""An outer loop over MPI, as a user starts it: the bits of threads."""

from pathlib import Path

import pytest

from jaxpipe.runtime.metrics.records import read_metrics
from tests.cli.conftest import WriteConfig
from tests.cli.test_runs import JAXPIPE, run
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
