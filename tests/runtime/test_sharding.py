"""Replicas that share an optimizer out hold less of it, and train as if they did not (ZeRO-1)."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.config import config_from, job_from, plan_from
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.checkpoint import open_checkpoint
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.stage.zero1 import OptimizerShard, size_of, whole_tree
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train_snapshot import restore_state
from jaxpipe.trace import Lane, read_chrome
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.training import Tree, run_tree, tiny_tree

pytestmark = pytest.mark.slow

ROUNDING = 1e-5
SHARDED = {"sharded": True, "learning_rate": 1e-2, "warmup_steps": 1, "clip_norm": 0.5}
WHOLE = {**SHARDED, "sharded": False}


def small(folder: Path, dataset: Path, **sections: dict[str, Any]) -> Tree:
    """Return a run that compiles fast."""
    model = {"num_layers": 2, **sections.pop("model", {})}
    return tiny_tree(folder, dataset, model=model, train={"loop": "scan"}, **sections)


def checksums(folder: Path) -> dict[str, str]:
    checkpoint = open_checkpoint(folder / "checkpoints" / "step-00000004")
    return {name: tensor.checksum for name, tensor in checkpoint.tensors.items()}


def params_of(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(folder / "checkpoints" / "step-00000004")
    return checkpoint.read(n for n in checkpoint.tensors if not n.startswith(("mu.", "nu.")))


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=5),
    count=st.integers(1, 6),
)
def test_pieces_are_equal_parts_of_the_whole(shapes: list[tuple[int, ...]], count: int) -> None:
    tree = {f"{n}": np.random.default_rng(n).normal(size=shape) for n, shape in enumerate(shapes)}
    shares = [OptimizerShard(index=index, count=count).pieces(tree) for index in range(count)]
    sizes = [size_of(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    flat = np.concatenate([piece for share in shares for piece in share.values()])
    jax.tree.map(np.testing.assert_array_equal, whole_tree(flat, tree), tree)


@pytest.mark.parametrize(
    ("plan", "more"),
    [
        ({}, {"model": {"tied": True}}),
        ({"stages": 1, "replicas": 4}, {"model": {"tied": False}}),
        (
            {"chunks": 2, "schedule": "interleaved-1f1b", "all_reduce": "hierarchical"},
            {
                "model": {"compute_dtype": "float16"},
                "loss_scale": {"initial": 2.0**21},
                "comm": {"gradients": "top_k", "top_k_fraction": 0.25, "chunk_bytes": 1000},
            },
        ),
    ],
)
def test_it_changes_roundings_alone(
    tmp_path: Path,
    dataset: Path,
    caplog: pytest.LogCaptureFixture,
    plan: dict[str, Any],
    more: dict[str, Any],
) -> None:
    sharded, whole = (
        run_tree(small(tmp_path / name, dataset, plan=plan, optimizer=optimizer, **more))
        for name, optimizer in (("sharded", SHARDED), ("whole", WHOLE))
    )
    assert not caplog.messages, "the copies of a tied embedding differ"
    nearness = 1e-3 if "loss_scale" in more else ROUNDING
    assert [m.loss for m in sharded] == pytest.approx([m.loss for m in whole], rel=nearness)
    assert [m.skipped_steps for m in sharded] == [m.skipped_steps for m in whole]
    params = [params_of(tmp_path / name) for name in ("sharded", "whole")]
    for name, found in params[0].items():
        np.testing.assert_allclose(found, params[1][name], rtol=10 * nearness, atol=10 * nearness)
    spans = read_chrome(tmp_path / "sharded" / "trace.json").spans
    gathers = [span for span in spans if span.name == "gather"]
    assert {span.lane for span in gathers} == {Lane.REDUCE}
    assert len(gathers) == len([span for span in spans if span.lane is Lane.UPDATE])


def moment_bytes(tree: Tree) -> list[int]:
    """Return how many bytes of moments each rank holds."""
    config = config_from(tree)
    plan = plan_from(config)
    job = job_from(config, plan)

    def work(transport: Transport) -> int:
        started = worker.start(job, transport)
        state, _ = restore_state(started, None)
        started.close()
        leaves = jax.tree.leaves([held.moments for held in state.stages.values()])
        return sum(leaf.nbytes for leaf in leaves if leaf.ndim)

    with patch.object(worker, "compile_stage", compile_stage_once):
        return run_ranks(plan.num_ranks, work)


def test_a_rank_holds_its_part_of_the_moments(tmp_path: Path, dataset: Path) -> None:
    three = {"replicas": 3}, {"batch": 6}
    one: tuple[dict[str, Any], dict[str, Any]] = {"replicas": 1}, {}
    whole, alone, sharded = (
        moment_bytes(
            tiny_tree(
                tmp_path,
                dataset,
                model={"tied": False, "num_layers": 2},
                plan=plan,
                train=train,
                optimizer=optimizer,
            )
        )
        for (plan, train), optimizer in ((three, WHOLE), (one, SHARDED), (three, SHARDED))
    )
    assert alone == whole[:2]
    for stage in range(2):
        held = sharded[stage::2]
        assert sum(held) == whole[stage]
        assert max(held) - min(held) <= 2 * 4


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> dict[bool, Path]:
    """Return folders of runs of four steps, sharded and not, the last two of which are undone."""
    folders = {}
    for is_sharded, optimizer in ((True, SHARDED), (False, WHOLE)):
        folder = tmp_path_factory.mktemp("runs") / f"{is_sharded}"
        run_tree(small(folder, dataset, optimizer=optimizer))
        shutil.copytree(folder, folder.with_name("whole"))
        shutil.rmtree(folder / "checkpoints" / "step-00000004")
        folders[is_sharded] = folder
    return folders


@pytest.mark.parametrize(
    ("was_sharded", "optimizer", "plan"),
    [
        (True, SHARDED, {}),
        (True, WHOLE, {}),
        (False, SHARDED, {}),
        (True, SHARDED, {"stages": 1, "replicas": 4}),
        (True, WHOLE, {"stages": 1, "replicas": 1}),
    ],
)
def test_checkpoints_do_not_depend_on_it(
    halfway: dict[bool, Path],
    tmp_path: Path,
    dataset: Path,
    was_sharded: bool,
    optimizer: dict[str, Any],
    plan: dict[str, Any],
) -> None:
    reference = halfway[was_sharded].with_name("whole")
    folder = tmp_path / "run"
    shutil.copytree(halfway[was_sharded], folder)
    resumed = run_tree(small(folder, dataset, optimizer=optimizer, plan=plan), resume=True)
    if optimizer is SHARDED and was_sharded and not plan:
        assert checksums(folder) == checksums(reference)
    expected = [m.loss for m in read_metrics(reference / "metrics.jsonl")]
    assert [m.loss for m in resumed] == pytest.approx(expected, rel=ROUNDING)


def test_a_mesh_is_refused(tmp_path: Path, dataset: Path) -> None:
    tree = small(tmp_path, dataset, optimizer=SHARDED, mesh={"tensor": 2})
    with pytest.raises(ConfigError, match=r"`optimizer.sharded` is true, and .* is 2; remove one"):
        plan_from(config_from(tree))
