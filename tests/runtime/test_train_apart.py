"""Sharded optimizers and outer loops whose ranks have a disk each: one is lost, no bit changes.

In threads, as all ranks of one process.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint.folders import committed_folders
from jaxpipe.runtime.checkpoint.own_disks.available import newest_available
from jaxpipe.runtime.checkpoint.own_disks.disks import Disks
from jaxpipe.runtime.checkpoint.resume import resumed_state
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train import train
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.training import Tree, run_tree, small_tree

STEPS, TIMEOUT_S = 6, 60.0
APART = Disks(leader_of=(0, 1), hosts=("a", "b"))


def folder_of(root: Path, rank: int) -> Path:
    return root / f"host-{rank}" / "run"


def train_apart(root: Path, tree: Tree, *, resume: bool = False) -> None:
    config = config_from(tree)
    plan = plan_from(config)
    whole = replace(job_from(config, plan), disks=APART)

    def work(transport: Transport) -> None:
        folder = folder_of(root, transport.rank)
        job = replace(whole, run=replace(whole.run, folder=str(folder)))
        checkpoint = None
        if resume:
            found = newest_available(transport, APART, folder, timeout_s=TIMEOUT_S)
            checkpoint = resumed_state(job, transport, found, timeout_s=TIMEOUT_S)
            assert checkpoint is not None
            assert checkpoint.step == STEPS - 2
        train(job, transport, checkpoint=checkpoint, observe=lambda _: None)

    with patch.object(worker, "compile_stage", compile_stage_once):
        run_ranks(2, work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": {"sharded": True}},
        {"outer": {"islands": 2, "every": 3, "delay": 1}},  # one is under way at step 4
    ],
    ids=["zero1", "outer"],
)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_disk_changes_no_bit(
    tmp_path: Path, dataset: Path, sections: dict[str, dict[str, Any]], lost: int
) -> None:
    tree = small_tree(
        tmp_path / "shared",
        dataset,
        plan={"cluster": "two-region", "stages": 1},
        train={"steps": STEPS, "eval_every": STEPS},
        **sections,
    )
    expected = [(m.step, m.loss, m.eval_loss, m.grad_norm) for m in run_tree(tree)]
    train_apart(tmp_path, tree)
    # A disk is lost, and the last checkpoint on the other one with it.
    first, second = (folder_of(tmp_path, rank) for rank in range(2))
    kept = (second, first)[lost]
    assert STEPS - 2 in committed_folders((first, second)[lost])
    shutil.rmtree((first, second)[lost])
    shutil.rmtree(committed_folders(kept)[STEPS])
    train_apart(tmp_path, tree, resume=True)
    # Those of the first steps came with the checkpoint, where the disk of rank 0 was lost.
    found = read_metrics(first / "metrics.jsonl")
    assert [(m.step, m.loss, m.eval_loss, m.grad_norm) for m in found] == expected
    shared = {
        path.name: path.read_bytes()
        for path in committed_folders(tmp_path / "shared")[STEPS].glob("*.safetensors")
    }
    ours = committed_folders(first)[STEPS]
    assert {name: (ours / name).read_bytes() for name in shared} == shared
    assert shared
