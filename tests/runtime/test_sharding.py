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
from jaxpipe.config import cluster_from, config_from, job_from
from jaxpipe.errors import ConfigError
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.forecast.plan_memory import plan_memory
from jaxpipe.runtime.checkpoint import open_checkpoint
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.stage.zero1 import (
    OptimizerShard,
    ShardedParameters,
    size_of,
    whole_tree,
)
from jaxpipe.runtime.step import worker
from jaxpipe.runtime.train_snapshot import restore_state
from jaxpipe.simulate.plan_step import gathered_bytes
from jaxpipe.trace import Lane, read_chrome
from tests.runtime.compiled_once import compile_stage_once
from tests.runtime.training import Tree, run_tree, small_tree

pytestmark = pytest.mark.slow

ROUNDING = 1e-5
SHARDED = {"sharded": True, "learning_rate": 1e-2, "warmup_steps": 1, "clip_norm": 0.5}
WHOLE = {**SHARDED, "sharded": False}
UNLIKE = {"cuts": ((1, 1), (2,)), "shares": (5, 3)}


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


@given(segments=st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple), data=st.data())
def test_pieces_of_segments_make_up_the_stage(segments: tuple[int, ...], data: st.DataObject):
    draw, num_layers = np.random.default_rng(0), sum(segments)
    tree = {
        "blocks": {"up": draw.normal(size=(num_layers, 2, 3)), "bias": np.arange(num_layers)},
        "embed": {"tokens": draw.normal(size=(3, 2)), "positions": draw.normal(size=(4, 2))},
        "head": {"scale": draw.normal(size=5)},
    }
    count, tied = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    # The position of a replica may differ from segment to segment, since sync trees do.
    orders = [data.draw(st.permutations(range(count))) for _ in segments]
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    replicas = [
        ShardedParameters(
            shards=tuple(OptimizerShard(index=order[replica], count=count) for order in orders),
            segments=segments,
            shapes=shapes,
            tied=tied,
        )
        for replica in range(count)
    ]
    owned = [replica.owned(tree) for replica in replicas]
    vectors = [replica.vectors(pieces) for replica, pieces in zip(replicas, owned, strict=True)]
    assert sum(replicas[0].sizes) == size_of(tree) - tied * tree["embed"]["tokens"].size
    whole = [
        np.concatenate([vectors[order.index(index)][n] for index in range(count)])
        for n, order in enumerate(orders)
    ]
    assert tuple(vector.size for vector in whole) == replicas[0].sizes
    for replica, pieces in zip(replicas, owned, strict=True):
        jax.tree.map(np.testing.assert_array_equal, replica.join(whole, pieces), tree)


@pytest.mark.parametrize(
    ("plan", "more"),
    [
        ({}, {"model": {"tied": True}}),
        ({"cuts": ((1, 1), (2,)), "shares": (5, 3)}, {"model": {"tied": True}}),
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
        run_tree(small_tree(tmp_path / name, dataset, plan=plan, optimizer=optimizer, **more))
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
    more = {**more, "paced": {"tflops": 1.0}}
    config = config_from(
        small_tree(tmp_path / "sharded", dataset, plan=plan, optimizer=SHARDED, **more)
    )
    # The bytes that a simulation of the plan has: each rank brings its shards of them. Profiles
    # count learned positions with the token table, which is left out where it is tied.
    shape, planned = config.model, plan_from(config)
    positions = 4 * shape.sequence * shape.dim * planned.shares_embedding
    num_bytes = positions + sum(gathered_bytes(planned, conditions_of(config)))
    for step in {span.step for span in gathers}:
        assert sum(span.num_bytes for span in gathers if span.step == step) == num_bytes


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
            small_tree(
                tmp_path,
                dataset,
                model={"tied": False},
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
def halfway(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> dict[str, Path]:
    """Return folders of runs of four steps by name, the last two of which are undone."""
    folders = {}
    for name, optimizer, plan in (
        ("sharded", SHARDED, {}),
        ("whole", WHOLE, {}),
        ("unlike", SHARDED, UNLIKE),
    ):
        folder = tmp_path_factory.mktemp("runs") / "half"
        run_tree(small_tree(folder, dataset, optimizer=optimizer, plan=plan))
        shutil.copytree(folder, folder.with_name("whole"))
        shutil.rmtree(folder / "checkpoints" / "step-00000004")
        folders[name] = folder
    return folders


@pytest.mark.parametrize(
    ("saved", "optimizer", "plan"),
    [
        ("sharded", SHARDED, {}),
        ("sharded", WHOLE, {}),
        ("whole", SHARDED, {}),
        ("sharded", SHARDED, {"stages": 1, "replicas": 4}),
        ("sharded", WHOLE, {"stages": 1, "replicas": 1}),
        ("unlike", SHARDED, UNLIKE),
        ("unlike", SHARDED, {}),
        ("unlike", WHOLE, UNLIKE),
        ("sharded", SHARDED, UNLIKE),
    ],
)
def test_checkpoints_do_not_depend_on_it(
    halfway: dict[str, Path],
    tmp_path: Path,
    dataset: Path,
    saved: str,
    optimizer: dict[str, Any],
    plan: dict[str, Any],
) -> None:
    reference = halfway[saved].with_name("whole")
    folder = tmp_path / "run"
    shutil.copytree(halfway[saved], folder)
    resumed = run_tree(small_tree(folder, dataset, optimizer=optimizer, plan=plan), resume=True)
    if (saved, optimizer, plan) in (("sharded", SHARDED, {}), ("unlike", SHARDED, UNLIKE)):
        assert checksums(folder) == checksums(reference)
    expected = [m.loss for m in read_metrics(reference / "metrics.jsonl")]
    assert [m.loss for m in resumed] == pytest.approx(expected, rel=ROUNDING)


def test_unlike_replicas_train_as_one_device(
    halfway: dict[str, Path], tmp_path: Path, dataset: Path
) -> None:
    alone = {"stages": 1, "replicas": 1}
    expected = run_tree(small_tree(tmp_path, dataset, optimizer=WHOLE, plan=alone))
    found = read_metrics(halfway["unlike"].with_name("whole") / "metrics.jsonl")
    assert [m.loss for m in found] == pytest.approx([m.loss for m in expected], rel=ROUNDING)
    norms = [m.grad_norm for m in expected]
    assert [m.grad_norm for m in found] == pytest.approx(norms, rel=ROUNDING)


@pytest.mark.parametrize("tied", [False, True])
def test_memory_of_the_moments_of_unlike_replicas(
    tmp_path: Path, dataset: Path, tied: bool
) -> None:
    plan = {"cuts": ((2, 1), (3,), (1, 2)), "shares": (2, 3, 3)}
    tree = small_tree(tmp_path, dataset, plan=plan, model={"tied": tied, "num_layers": 3})
    config = config_from({**tree, "optimizer": SHARDED})
    # Positions are sharded, but counted with the tied embedding, which is not.
    more = config.model.sequence * config.model.dim if tied else 0
    planned = plan_from(config)
    job = job_from(config, planned)
    for place in plan_memory(config, planned, cluster_from(config)):
        (rank,), (stage,) = place.ranks, place.stages
        _, moments = jax.eval_shape(job.functions(stage=stage, rank=rank).init)
        held = sum(4 * leaf.size for leaf in jax.tree.leaves(moments) if leaf.ndim)
        # Shards of a segment differ by one number at most, here of two moments in float32.
        rounded = 8 * len(planned.segments)
        assert -rounded <= place.needs.optimizer - held <= rounded + 8 * more


def test_a_mesh_is_refused(tmp_path: Path, dataset: Path) -> None:
    tree = small_tree(tmp_path, dataset, optimizer=SHARDED, mesh={"tensor": 2})
    with pytest.raises(ConfigError, match=r"`optimizer.sharded` .* and `mesh` .* exclude"):
        plan_from(config_from(tree))
