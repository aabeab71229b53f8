"""A run folder has its inputs: it can be moved, and needs neither dataset nor working directory."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.config import config_from, config_in, keep_inputs, load_config, to_tree
from jaxpipe.config.kept_inputs import CONFIG_FILE, TOKENIZER_FILE, tokenizer_of
from jaxpipe.plan import write_plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, open_checkpoint, write_shard
from jaxpipe.runtime.data import BytePairs, Bytes, byte_level_definition
from jaxpipe.topo.write import cluster_toml
from tests.runtime.training import tiny_tree


@pytest.mark.slow
def test_bytes_have_a_definition_for_others() -> None:
    text = "né, 漢字\n\t 'x'  \x00"
    defined = BytePairs(byte_level_definition())
    assert defined.vocabulary == 256
    assert defined.encode(text).tolist() == Bytes().encode(text).tolist()
    tokens = np.arange(256)
    assert defined.decode(tokens) == Bytes().decode(tokens)


def test_the_tokenizer_of_a_moved_run_is_in_its_folder(tmp_path: Path, dataset: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(dataset, data)
    config = config_from(tiny_tree(tmp_path / "run", data))
    partial = begin_checkpoint(tmp_path / "run", step=1)
    entries = list(write_shard(partial, "stage-0", {"x": np.zeros(2, np.float32)}))
    commit(partial, entries, {"config": to_tree(config)})
    keep_inputs(config, topo.load("laptop"), tmp_path / "run")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(data)
    (folder,) = (tmp_path / "moved" / "checkpoints").glob("step-*")
    assert tokenizer_of(open_checkpoint(folder)).decode(np.array([104, 105])) == "hi"
    # Colleagues may read it: the umask decides, as for every other file.
    mode = (tmp_path / "moved" / TOKENIZER_FILE).stat().st_mode
    assert (folder / "stage-0.safetensors").stat().st_mode == mode


def test_plan_and_cluster_are_read_from_the_moved_folder(tmp_path: Path, dataset: Path) -> None:
    cluster = topo.load("two-region")
    (tmp_path / "mine.toml").write_text(cluster_toml(cluster))
    plan = {"cluster": str(tmp_path / "mine.toml")}
    config = config_from(tiny_tree(tmp_path / "run", dataset, plan=plan))
    resolved = plan_from(config)
    (tmp_path / "run").mkdir()
    keep_inputs(config, cluster, tmp_path / "run")
    write_plan(resolved, cluster, tmp_path / "run" / "plan.toml")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    (tmp_path / "mine.toml").unlink()
    moved = config_in(tmp_path / "moved", to_tree(config))
    assert plan_from(moved) == resolved


def test_the_kept_configuration_can_be_read_in_the_folder(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_from(tiny_tree(tmp_path, dataset, plan={"cluster": "two-region"}))
    cluster = topo.load("two-region")
    keep_inputs(config, cluster, tmp_path)
    write_plan(plan_from(config), cluster, tmp_path / "plan.toml")
    monkeypatch.chdir(tmp_path)
    kept = load_config(CONFIG_FILE)
    assert (kept.run.folder, kept.plan.file) == (".", "plan.toml")
    assert (kept.model, kept.train, kept.optimizer) == (
        config.model,
        config.train,
        config.optimizer,
    )
    assert plan_from(kept) == plan_from(config)
