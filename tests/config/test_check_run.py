"""What a run may resume from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import check_run, config_from, to_tree
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard
from tests.runtime.training import tiny_tree


def resume_from(run: Path, dataset: Path, metadata: dict[str, Any]) -> None:
    folder = begin_checkpoint(run, step=1)
    commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), metadata)
    check_run(config_from(tiny_tree(run, dataset)), resume=True)


def saved_model(dataset: Path) -> dict[str, Any]:
    return to_tree(config_from(tiny_tree(dataset, dataset)))["model"]


def test_a_field_that_is_younger_than_the_checkpoint_had_its_default(tmp_path: Path, dataset: Path):
    model = saved_model(dataset)
    del model["logits_bytes"], model["tied"]
    resume_from(tmp_path, dataset, {"config": {"model": model}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dim": None}, r"does not have `model\.dim`; resume from another one"),
        ({"dim": 7}, r"`model\.dim` is \d+, the checkpoint .* has 7; set it to that"),
    ],
)
def test_another_model_is_refused(
    tmp_path: Path, dataset: Path, change: dict[str, Any], words: str
):
    model = saved_model(dataset) | change
    model = {key: value for key, value in model.items() if value is not None}
    with pytest.raises(CheckpointError, match=words):
        resume_from(tmp_path, dataset, {"config": {"model": model}})


@pytest.mark.parametrize("metadata", [{}, {"config": 3}, {"config": {"model": "tiny"}}])
def test_a_checkpoint_without_a_model_is_refused(
    tmp_path: Path, dataset: Path, metadata: dict[str, Any]
):
    with pytest.raises(CheckpointError, match=r"has no `config\.model`; resume from another one"):
        resume_from(tmp_path, dataset, metadata)
