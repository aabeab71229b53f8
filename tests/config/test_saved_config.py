"""The configuration in a checkpoint of a stranger: one line at once, whatever it says."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.cli.main import main
from jaxpipe.config import saved_config
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from tests.runtime.checkpoint.test_strangers import Tree, forge
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, dataset: Path
) -> Path:
    run = tmp_path_factory.mktemp("run")
    tree = tiny_tree(
        run, dataset, plan={"replicas": 1}, train={"steps": 2}, model={"tied": request.param}
    )
    run_tree(tree)
    return run


@pytest.fixture
def folder(trained: Path) -> Iterator[Path]:
    """The newest checkpoint, whose manifest is put back afterwards."""
    newest = latest(trained)
    intact = (newest / "manifest.json").read_bytes()
    yield newest
    (newest / "manifest.json").write_bytes(intact)


def test_ours_is_read(folder: Path):
    assert saved_config(open_checkpoint(folder)).model.dim == 16


def set_model(**fields: Any) -> Callable[[Tree], None]:
    return lambda tree: tree["metadata"]["config"]["model"].update(fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree: tree["metadata"].pop("config"), "lacks the configuration of its run"),
        (lambda tree: tree["metadata"].update(config=[1, 2]), "lacks the configuration"),
        (lambda tree: tree["metadata"]["config"].update(model=3), "`model` must be a section"),
        (lambda tree: tree["metadata"]["config"].update(data={}), "folder` is missing"),
        (set_model(num_layers=60000), "describes a model of"),
        (set_model(vocabulary=2 * 10**9), "describes a model of"),
        (set_model(num_layers=10**9), "`model.num_layers` must be from 1 to 65,536"),
        (set_model(num_layers=10**30), "`model.num_layers` must be from 1 to 65,536"),
        (set_model(sequence=10**12), "`model.sequence` must be from 1 to 2,147,483,647"),
        (set_model(vocabulary=10**12), "`model.vocabulary` must be from 1 to 2,147,483,647"),
        (set_model(dim="wide"), "a whole number, not text"),
        (set_model(param_dtype="float1"), "`model.param_dtype` must be one of"),
    ],
)
@pytest.mark.parametrize("command", [("generate", "--prompt", "a"), ("export", "--out", "x")])
def test_wrong_ones_are_one_line_at_once(
    folder: Path,
    change: Callable[[Tree], None],
    words: str,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    forge(folder, change)
    begin_s = time.process_time()
    code = main([command[0], str(folder.parents[1]), *command[1:]])
    if code == 0 and command[0] == "export":  # it needs the model alone
        assert "missing" in words
        return
    said = capsys.readouterr().err
    assert (code, said.count("\n")) == (2, 1), said
    assert words in said
    assert time.process_time() - begin_s < 2.0


def test_sizes_are_those_of_the_files(folder: Path):
    def change(tree: Tree) -> None:
        tree["metadata"]["config"]["model"]["vocabulary"] = 10**9
        for each in tree["tensors"] + tree["copies"]:
            if each["name"] in ("embed.tokens", "head.kernel"):
                each["shape"] = [10**9, 16]

    forge(folder, change)
    with pytest.raises(CheckpointError, match="lists more tensors than its files of"):
        saved_config(open_checkpoint(folder))


def test_a_pipe_among_the_shards_ends_generate(trained: Path, capsys: pytest.CaptureFixture[str]):
    shard = latest(trained) / "stage-1.safetensors"
    aside = shard.rename(trained / "aside")
    os.mkfifo(shard)
    try:
        assert main(["generate", str(trained), "--prompt", "a"]) == 2
        assert "it is not a regular file" in capsys.readouterr().err
    finally:
        aside.rename(shard)
