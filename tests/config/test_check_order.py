"""A run that resumes reads the samples that follow, or is refused by field."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.config import Config, config_from, describe, order_from
from jaxpipe.config.check_order import check_same_order
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import (
    Checkpoint,
    begin_checkpoint,
    commit,
    open_checkpoint,
    write_shard,
)
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.data.order.position import ORDER, SAMPLES
from jaxpipe.runtime.run_config import AllowedChange
from tests.runtime.training import tiny_tree


@pytest.fixture(scope="module")
def other_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare another text."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "text.txt").write_text("other words " * 400)
    prepare(Source(path=folder / "text.txt"), folder / "dataset")
    return folder / "dataset"


def of(dataset: Path, **sections: dict[str, Any]) -> Config:
    return config_from(tiny_tree(Path("run"), dataset, **sections))


def saved(config: Config, folder: Path, *, step: int = 3) -> Checkpoint:
    partial = begin_checkpoint(folder, step=step)
    entries = list(write_shard(partial, "stage-0", {"x": np.zeros(1, np.float32)}))
    metadata = {**describe(config), ORDER: order_from(config), SAMPLES: 24}
    return open_checkpoint(commit(partial, entries, metadata))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"run": {"seed": 5}}, r"^`run.seed` \(5\) must be as in the checkpoint .*, 1: .*--allow"),
        ({"train": {"sequence": 8}}, r"^`train.sequence` \(8\) .*, 16: .* skip or repeat samples"),
        ({"model": {"sequence": 32}}, r"^`train.sequence` \(32\) .*, 16: "),
        ({"data": {"pack": True}}, r"^`data.pack` \(true\) .*, false: "),
    ],
)
def test_another_order_is_refused_by_field(
    sections: dict[str, dict[str, Any]], words: str, dataset: Path, tmp_path: Path
) -> None:
    checkpoint, config = saved(of(dataset), tmp_path), of(dataset, **sections)
    with pytest.raises(CheckpointError, match=words):
        check_same_order(config, checkpoint)
    check_same_order(config, checkpoint, allowed=(AllowedChange.DATA,))
    check_same_order(config, replace(checkpoint, step=0))  # an import


def test_datasets_are_compared_by_content(
    dataset: Path, other_dataset: Path, tmp_path: Path
) -> None:
    checkpoint = saved(of(dataset), tmp_path)
    moved = tmp_path / "moved"
    moved.symlink_to(dataset)
    check_same_order(of(moved), checkpoint)
    check_same_order(of(dataset, train={"batch": 16}), checkpoint)
    with pytest.raises(CheckpointError, match=r"^`data.folder` \(.*\) must .* in content"):
        check_same_order(of(other_dataset), checkpoint)


def test_the_weights_of_a_mixture_are_compared(
    dataset: Path, other_dataset: Path, tmp_path: Path
) -> None:
    def mixed(weight: float) -> Config:
        tree = tiny_tree(Path("run"), dataset)
        folders = {str(dataset): 1.0, str(other_dataset): weight}
        sources = [{"folder": folder, "weight": part} for folder, part in folders.items()]
        return config_from({**tree, "data": {"sources": sources}})

    checkpoint = saved(mixed(2.0), tmp_path)
    check_same_order(mixed(2.0), checkpoint)
    with pytest.raises(CheckpointError, match=r"^`data.sources` .* in content and weights"):
        check_same_order(mixed(3.0), checkpoint)
