"""Runs that train adapters, or some layers: what changes, what is saved, what a resumed run has."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.cli.main import main
from jaxpipe.config import config_from, describe, keep_tokenizer, read_merged, restored_model
from jaxpipe.inference.held_out_losses import held_out_losses
from jaxpipe.interchange import begin_run, our_names, shape_of
from jaxpipe.run.folder.start_from import check_start_from, start_from
from jaxpipe.runtime.checkpoint import Checkpoint, StreamedTensor, latest, open_checkpoint
from jaxpipe.runtime.data import Bytes
from jaxpipe.runtime.metrics.records import METRICS_FILE, StepMetrics, read_metrics
from tests.runtime.training import Tree, run_tree, tiny_tree

pytestmark = pytest.mark.slow

LORA: dict[str, Any] = {"rank": 2, "alpha": 4.0}


def tree_of(folder: Path, dataset: Path, /, **sections: dict[str, Any]) -> Tree:
    tree = tiny_tree(folder, dataset, **sections)
    tree["model"] |= {"num_layers": 2, "dim": 8, "tied": True}
    tree["optimizer"]["learning_rate"] = 0.1
    return tree


def begin(tree: Tree) -> Tree:
    """Write what an import writes: a checkpoint of step 0 with parameters and nothing else."""
    plain = {name: each for name, each in tree.items() if name != "lora"}
    config = config_from(plain)
    source = np.random.default_rng(3)
    tensors = [
        StreamedTensor.of(name, (0.1 * source.normal(size=shape)).astype(np.float32))
        for name, shape in shapes_of(config.model)
    ]
    begin_run(Path(tree["run"]["folder"]), tensors, describe(config))
    return tree


def shapes_of(model: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, shape_of(name, model)) for name in our_names(model)]


def newest(folder: Path) -> Checkpoint:
    return open_checkpoint(latest(folder))


def losses(metrics: list[StepMetrics]) -> list[float]:
    return [each.loss for each in metrics]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    """Return the folder of a run with adapters, of two stages and two replicas."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    run_tree(begin(tree_of(folder, dataset, lora=LORA)), resume=True)
    return folder


def metrics_of(folder: Path) -> list[StepMetrics]:
    return read_metrics(folder / METRICS_FILE)


def read_losses(folder: Path) -> list[float]:
    return losses(metrics_of(folder))


def test_only_adapters_change_and_only_they_have_moments(adapted: Path) -> None:
    held_out = [each.eval_loss for each in metrics_of(adapted) if each.eval_loss is not None]
    assert held_out[-1] < held_out[0]
    last, first = newest(adapted), open_checkpoint(adapted / "checkpoints" / "step-00000000")
    assert last.step == 4
    for name, tensor in first.read(first.tensors).items():
        np.testing.assert_array_equal(last.read([name])[name], tensor, err_msg=name)
    added = {name for name in last.tensors if name not in first.tensors}
    factors = {name for name in added if name.startswith("blocks.")}
    assert factors == {
        f"blocks.{layer}.attention.{product}.kernel_lora_{factor}"
        for layer in range(2)
        for product in ("qkv", "project")
        for factor in "ab"
    }
    assert added - factors == {f"{moment}.{name}" for moment in ("mu", "nu") for name in factors}
    assert all(np.any(tensor) for tensor in last.read(factors).values())


def test_a_resumed_run_has_the_same_bits(adapted: Path, dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(adapted, tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "checkpoints" / "step-00000004")
    resumed = run_tree(tree_of(tmp_path / "half", dataset, lora=LORA), resume=True)
    assert losses(resumed) == read_losses(adapted)
    one, other = newest(adapted), newest(tmp_path / "half")
    assert {name: each.checksum for name, each in one.tensors.items()} == {
        name: each.checksum for name, each in other.tensors.items()
    }


def test_a_run_from_another_begins_with_its_adapters(
    adapted: Path, dataset: Path, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path / "second", dataset, lora=LORA)
    tree["optimizer"]["learning_rate"] = 1e-30  # below half an ulp of all factors
    config = config_from(tree)
    start_from(config, adapted, check_start_from(config, adapted))
    metrics = run_tree(tree, resume=True)
    assert [each.step for each in metrics] == [1, 2, 3, 4]
    last, source = newest(tmp_path / "second"), newest(adapted)
    factors = [name for name in source.tensors if name.startswith("blocks.") and "_lora_" in name]
    for name, tensor in last.read(factors).items():
        np.testing.assert_array_equal(tensor, source.read([name])[name], err_msg=name)


def test_replicas_shard_the_moments_of_adapters(
    adapted: Path, dataset: Path, tmp_path: Path
) -> None:
    tree = tree_of(tmp_path / "zero", dataset, lora=LORA)
    tree["optimizer"]["sharded"] = True
    sharded = run_tree(begin(tree), resume=True)
    np.testing.assert_allclose(losses(sharded), read_losses(adapted), rtol=1e-5)
    assert newest(tmp_path / "zero").tensors.keys() == newest(adapted).tensors.keys()


def test_what_reads_a_checkpoint_has_merged_kernels(adapted: Path) -> None:
    checkpoint = newest(adapted)
    name = "blocks.1.attention.qkv.kernel"
    both = checkpoint.read([name, f"{name}_lora_a", f"{name}_lora_b"])
    a, b = (both[f"{name}_lora_{factor}"] for factor in "ab")
    expected = both[name] + 2 * np.einsum("ir,rkj->ikj", a, b)
    # Sums of float32 cancel: an element near 0 is as exact as what it is the sum of, below 0.3.
    merged = read_merged(checkpoint)([name])[name]
    np.testing.assert_allclose(merged, expected, rtol=1e-6, atol=3e-8)
    _, params = restored_model(checkpoint)
    kernel = params["blocks"]["attention"]["qkv"]
    assert kernel.keys() == {"kernel", "bias"}
    np.testing.assert_allclose(kernel["kernel"][1], expected, rtol=1e-6, atol=3e-8)


def test_an_evaluation_is_that_of_training(
    adapted: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = metrics_of(adapted)[-1].eval_loss
    assert last is not None
    # A run of ranks keeps the definition of its tokens, which its dataset of bytes does not have.
    keep_tokenizer(Bytes(), adapted)
    # A batch of 8 windows, as in training.
    (found,) = held_out_losses(newest(adapted), [dataset], most_windows=8)
    assert found.num_targets == 8 * 16
    np.testing.assert_allclose(found.loss, last, rtol=1e-5)
    assert main(["evaluate", str(adapted), "--data", str(dataset), "--windows", "8"]) == 0
    assert f"{last:.4f} nats per token" in capsys.readouterr().out
    assert main(["evaluate", str(adapted), "--windows", "0"]) == 2
    assert "`--windows` must be from 1 to 1,000,000,000, not 0" in capsys.readouterr().err


def test_frozen_layers_keep_their_bits(tmp_path: Path, dataset: Path) -> None:
    tree = tree_of(tmp_path / "frozen", dataset, plan={"stages": 1, "replicas": 2})
    tree["train"]["frozen"] = ["embed.*", "blocks.0.*", "blocks.*.mlp.*"]
    tree["optimizer"]["decayed"] = "all"
    run_tree(begin(tree), resume=True)
    folder = tmp_path / "frozen"
    last, first = newest(folder), open_checkpoint(folder / "checkpoints" / "step-00000000")
    before, after = first.read(first.tensors), last.read(first.tensors)
    still = {name for name in before if np.array_equal(before[name], after[name])}
    frozen = {n for n in before if n.startswith(("embed.", "blocks.0.")) or ".mlp." in n}
    assert still == frozen
    # A parameter of which a layer is trained has moments of all layers, whatever the partition.
    moments = {name.removeprefix("mu.") for name in last.tensors if name.startswith("mu.")}
    assert moments == {n for n in before if not n.startswith("embed.") and ".mlp." not in n}
