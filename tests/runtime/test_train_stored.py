"""Runs with an S3 server: checkpoints, resumed with other stages and past a damaged one; data."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.config import config_from, job_from
from jaxpipe.config.check_run import check_run
from jaxpipe.config.kept_inputs import TOKENIZER_FILE, keep_inputs
from jaxpipe.errors import CheckpointError, DataError
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import committed, newest_valid
from jaxpipe.runtime.checkpoint.resume import resumed_state
from jaxpipe.runtime.metrics.records import StepMetrics, read_metrics
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.storage.object_folder import ObjectFolder, open_object_folder
from jaxpipe.runtime.train import train
from jaxpipe.topo import load
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.training import Tree, run_tree, small_tree
from tests.s3_server import BUCKET, s3_server

TIMEOUT_S = 60.0


@pytest.fixture
def url() -> Iterator[str]:
    with s3_server():
        yield f"s3://{BUCKET}/run"


def resume(tree: Tree) -> list[StepMetrics]:
    config = config_from(tree)
    plan = plan_from(config)
    job = job_from(config, plan)

    def work(transport: Transport) -> None:
        found = newest_valid(job.checkpoints) if transport.rank == 0 else None
        saved = resumed_state(job, transport, found, timeout_s=TIMEOUT_S)
        train(job, transport, checkpoint=saved, observe=lambda _: None)

    with patch.object(worker, "compile_stage", compile_stage_once):
        run_ranks(plan.num_ranks, work)
    return read_metrics(job.metrics_file)


def flip(folder: ObjectFolder, shard: str = "stage-0") -> None:
    """Change the last byte of a tensor in a shard."""
    file = next(name for name in folder.sizes() if name.startswith(f"{shard}-"))
    content = bytearray(folder.read(file))
    content[-1] ^= 1
    folder.put(file, bytes(content))


@pytest.mark.slow
def test_a_run_resumes_from_object_storage_with_other_stages(
    tmp_path: Path, dataset: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = {"replicas": 1, "stages": 2}
    local = small_tree(tmp_path / "local", dataset, plan=one)
    expected = [(m.step, m.loss, m.grad_norm) for m in run_tree(local)]
    stored = small_tree(tmp_path / "first", dataset, plan=one, checkpoint={"folder": url})
    run_tree(stored)
    assert not (tmp_path / "first" / "checkpoints").exists()
    place = job_from(config_from(stored), plan_from(config_from(stored))).checkpoints
    assert list(committed(place)) == [2, 4]
    # Only a rank that reads this tensor can find it broken.
    newest = committed(place)[4]
    assert isinstance(newest, ObjectFolder)
    flip(newest)
    other = small_tree(
        tmp_path / "second",  # as on another host
        dataset,
        plan={"replicas": 1, "stages": 1},
        checkpoint={"folder": url},
    )
    with caplog.at_level(logging.WARNING):
        found = [(m.step, m.loss, m.grad_norm) for m in resume(other)]
    assert "the run resumes from step 2" in caplog.text
    # The metrics of steps 1 and 2 came with the checkpoint.
    assert [each[0] for each in found] == [1, 2, 3, 4]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    # The step was repeated, and its broken object is gone.
    assert newest_valid(place).step == 4
    flip(newest)
    oldest = committed(place)[2]
    assert isinstance(oldest, ObjectFolder)
    flip(oldest)
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        resume(other)


@pytest.mark.slow
def test_islands_take_an_older_step_together(
    tmp_path: Path, dataset: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    outer = {"islands": 2, "every": 2, "delay": 1, "codec": "top_k"}
    shape = {"stages": 2, "replicas": 2}
    sections = {"plan": shape, "outer": outer, "checkpoint": {"every": 1, "folder": url}}
    expected = [m.loss for m in run_tree(small_tree(tmp_path / "first", dataset, **sections))]
    other = small_tree(tmp_path / "second", dataset, **sections)
    place = job_from(config_from(other), plan_from(config_from(other))).checkpoints
    for resumed, shard in enumerate(("stage-1", "island-1-stage-0", "island-0", "island-1-rank-3")):
        newest = committed(place)[4]
        assert isinstance(newest, ObjectFolder)
        flip(newest, shard)
        with caplog.at_level(logging.WARNING):
            found = resume(other)
        assert caplog.text.count("the run resumes from step 3") == resumed + 1, shard
        assert [m.loss for m in found] == expected


@pytest.mark.slow
def test_other_islands_resume_from_what_is_stored(tmp_path: Path, dataset: Path, url: str) -> None:
    """They read what they need of all islands; from a local folder they start with the same."""
    saved: Tree = {"checkpoint": {"every": 2}, "train": {"steps": 6}}
    apart: Tree = {"outer": {"islands": 2, "every": 6}, "plan": {"stages": 2, "replicas": 2}}
    met: Tree = {"plan": {"stages": 1, "replicas": 1}}
    losses = {}
    for name, folder in (("stored", url), ("local", None)):
        at = {**saved, "checkpoint": {"every": 2, "folder": folder} if folder else {"every": 2}}
        run_tree(small_tree(tmp_path / name, dataset, **at, **apart))
        tree = small_tree(tmp_path / name, dataset, **at, **met)
        config = config_from(tree)
        place = job_from(config, plan_from(config)).checkpoints
        newest = committed(place)[6]  # the islands are together there, and apart before
        if isinstance(newest, ObjectFolder):
            flip(newest)
        else:
            shutil.rmtree(newest)
        found = resume(tree) if folder else run_tree(tree, resume=True)
        losses[name] = [m.loss for m in found]
    assert losses["stored"] == losses["local"]


@pytest.mark.slow
def test_a_run_on_stored_data_equals_one_on_a_disk(tmp_path: Path, dataset: Path, url: str) -> None:
    local = [m.loss for m in run_tree(small_tree(tmp_path / "local", dataset))]
    folder = open_object_folder(url, setting="data.folder")
    for path in dataset.iterdir():
        folder.put(path.name, path.read_bytes())
    tree = small_tree(tmp_path / "stored", dataset, data={"folder": url})
    assert [m.loss for m in run_tree(tree)] == local
    # The tokenizer for `generate` is kept in the folder of the run, as with data on a disk.
    config = config_from(tree)
    keep_inputs(config, load(config.plan.cluster), tmp_path / "stored")
    assert (tmp_path / "stored" / TOKENIZER_FILE).exists()


def test_data_that_is_not_there_is_one_error(tmp_path: Path, dataset: Path, url: str) -> None:
    for missing in (url, "s3://no-such-bucket/data"):
        tree = small_tree(tmp_path / "run", dataset, data={"folder": missing})
        with pytest.raises(DataError, match=rf"`data.folder` must be readable .*{missing}"):
            check_run(config_from(tree), resume=False)
