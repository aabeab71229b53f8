"""Master weights keep updates that 16 bits would round away, in every layout and after a stop."""

from pathlib import Path
from shutil import rmtree
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpipe.config import check_run, config_from
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import latest, open_checkpoint
from jaxpipe.runtime.stage.master_weights import MasterState, updated, with_master_weights
from tests.runtime.training import run_tree, small_tree

PREFIX = "master."


def test_updates_below_half_an_ulp_add_up() -> None:
    params = {"x": jnp.ones(3, jnp.bfloat16)}
    optimizer = with_master_weights(optax.sgd(1.0))
    state = optimizer.init(params)
    gradient = {"x": jnp.full(3, 2.0**-11, jnp.bfloat16)}
    for _ in range(64):
        changes, state = optimizer.update(gradient, state, params)
        params = updated(params, changes, state)
    assert params["x"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(params["x"].astype(jnp.float32), 1 - 64 * 2.0**-11)
    assert isinstance(state, MasterState)
    plain = optax.sgd(1.0).update(gradient, optax.sgd(1.0).init(params), params)[0]
    one = jnp.ones(3, jnp.bfloat16)
    np.testing.assert_array_equal(updated({"x": one}, plain, ())["x"], one)  # lost


def masters(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the master weights of the newest checkpoint, and the parameters, by their names."""
    checkpoint = open_checkpoint(latest(folder))
    names = sorted(set().union(*checkpoint.names_by_file.values()))
    names = [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]
    read = checkpoint.read([*names, *(PREFIX + name for name in names)])
    return {name: read[PREFIX + name] for name in names}, {name: read[name] for name in names}


@pytest.mark.slow
def test_shards_have_the_masters_of_one_rank_and_resume_bit_for_bit(
    dataset: Path, tmp_path: Path
) -> None:
    sections: dict[str, dict[str, Any]] = {
        "model": {"param_dtype": "bfloat16"},
        "train": {"steps": 2, "eval_every": 2},
        "checkpoint": {"every": 1},
    }
    two = {"stages": 1, "replicas": 2}
    tree = small_tree(tmp_path / "a", dataset, **sections, plan=two, optimizer={"sharded": True})
    run_tree(tree)
    master, params = masters(tmp_path / "a")
    for name, value in master.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(params[name], jnp.asarray(value).astype(jnp.bfloat16))

    rmtree(latest(tmp_path / "a"))
    run_tree(tree, resume=True)
    again, _ = masters(tmp_path / "a")
    for name, value in master.items():
        np.testing.assert_array_equal(again[name], value)

    alone = small_tree(tmp_path / "b", dataset, **sections, plan={"stages": 1, "replicas": 1})
    run_tree(alone)
    for name, value in masters(tmp_path / "b")[0].items():
        # Sums of gradients of 16 bits, in another order: a step of AdamW is at most its rate.
        np.testing.assert_allclose(master[name], value, atol=2e-2)

    tree["optimizer"]["master_weights"] = False
    with pytest.raises(CheckpointError, match=r"^`optimizer.master_weights` \(false\) must be as"):
        check_run(config_from(tree), resume=True)


@pytest.mark.slow
def test_layers_that_are_frozen_keep_their_masters(dataset: Path, tmp_path: Path) -> None:
    tree = small_tree(
        tmp_path,
        dataset,
        model={"param_dtype": "bfloat16"},
        plan={"stages": 1, "replicas": 1},
        train={"steps": 2, "eval_every": 2, "frozen": ["blocks.[0-0].*"]},
        optimizer={"learning_rate": 0.1},
    )
    run_tree(tree)
    master, params = masters(tmp_path)
    frozen = [name for name in master if name.startswith("blocks.0.")]
    assert frozen
    for name in frozen:
        np.testing.assert_array_equal(master[name], np.asarray(params[name], np.float32))
