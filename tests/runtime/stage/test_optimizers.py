"""Optimizers by name: schedules, moments, one layer at a time, pieces, and Muon against NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpipe.runtime.stage.moments import moments_of, with_moments
from jaxpipe.runtime.stage.optimizer import (
    MUON_RMS,
    decay_mask,
    learning_rate,
    matrices,
    stage_optimizer,
)
from jaxpipe.runtime.stage.optimizer_config import (
    Decayed,
    OptimizerConfig,
    OptimizerName,
    Schedule,
)
from jaxpipe.runtime.stage.zero1 import OptimizerShard

EVERY = pytest.mark.parametrize("name", list(OptimizerName))
SHAPES: dict[str, Any] = {
    "embed": {"tokens": (5, 4)},
    "blocks": {
        "norm": {"scale": (3, 4)},
        "qkv": {"kernel": (3, 4, 3, 4)},
        "up": {"kernel": (3, 4, 6), "bias": (3, 6)},
        "wide": {"kernel": (3, 130, 128)},  # large enough for Adafactor's factors
    },
    "head": {"scale": (4,)},
}


def draw(seed: int) -> dict[str, Any]:
    source = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(source.normal(size=shape), jnp.float32),
        SHAPES,
        is_leaf=lambda x: isinstance(x, tuple),
    )


def config_of(name: OptimizerName, **changes: Any) -> OptimizerConfig:
    return OptimizerConfig(name=name, learning_rate=0.1, warmup_steps=0, **changes)


def updated(config: OptimizerConfig, params: Any, *gradients: Any, decayed: Any = None) -> Any:
    """Return the parameters after an update for each of the gradients, and the state."""
    optimizer = stage_optimizer(config, num_steps=9, decayed=decayed)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)  # one compilation, where each operation would have its own
    for each in gradients:
        changes, state = update(each, state, params)
        params = jax.tree.map(jnp.add, params, changes)
    return params, state


def assert_near(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.COSINE, [1 / 3, 2 / 3, 1, 0.1 + 0.9 * 0.5, 0.1]),
        (Schedule.LINEAR, [1 / 3, 2 / 3, 1, 0.55, 0.1]),
        (Schedule.CONSTANT, [1 / 3, 2 / 3, 1, 1, 1]),
        (Schedule.WSD, [1 / 3, 2 / 3, 1, 1, 0.1]),
    ],
)
def test_schedules_are_their_closed_forms(schedule: Schedule, expected: list[float]) -> None:
    config = OptimizerConfig(
        learning_rate=2.0, warmup_steps=2, schedule=schedule, decay_fraction=0.25
    )
    rate = learning_rate(config, num_steps=12)
    found = [np.asarray(rate(step)) / 2 for step in (0, 1, 2, 7, 12)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if schedule is Schedule.WSD:  # 9 to 12 is the last quarter
        found = [np.asarray(rate(step)) / 2 for step in (9, 10, 11)]
        np.testing.assert_allclose(found, [1, 0.7, 0.4], rtol=1e-5)


@EVERY
def test_moments_survive_their_names(name: OptimizerName) -> None:
    params = draw(0)
    _, state = updated(config_of(name), params, draw(1), draw(2))
    fresh = stage_optimizer(config_of(name), num_steps=9).init(params)
    moments = moments_of(state)
    names = {
        OptimizerName.ADAMW: {"mu", "nu"},
        OptimizerName.LION: {"mu"},
        OptimizerName.SGD: {"trace"},
        OptimizerName.MUON: {"mu", "nu"},
        OptimizerName.ADAFACTOR: {"v_row", "v_col", "v"},
    }
    assert moments.keys() == names[name]
    # Of Adafactor none is counted: means of rows and columns are few.
    is_counted = name is not OptimizerName.ADAFACTOR
    assert name.facts.num_moments == (len(moments) if is_counted else 0)
    first = next(iter(moments))
    assert jax.tree.structure(moments[first]) == jax.tree.structure(params)
    again = with_moments(fresh, moments, num_updates=2)
    jax.tree.map(np.testing.assert_array_equal, again, state)


def test_gradient_descent_without_momentum_keeps_nothing() -> None:
    config, params = config_of(OptimizerName.SGD, beta1=0.0), draw(0)
    new, state = updated(config, params, draw(1))
    assert moments_of(state) == {}
    assert config.num_moments == 0
    # A momentum that decays at once is none.
    tiny, _ = updated(config_of(OptimizerName.SGD, beta1=1e-12), params, draw(1))
    assert_near(new, tiny)


@EVERY
def test_a_partition_of_the_layers_changes_no_update(name: OptimizerName) -> None:
    params, gradients = draw(0), (draw(1), draw(2))
    whole, _ = updated(config_of(name), params, *gradients)
    for layers in (slice(0, 1), slice(1, 3)):

        def part(tree: Any, layers: slice = layers) -> Any:
            return {"blocks": jax.tree.map(lambda leaf: leaf[layers], tree["blocks"])}

        found, _ = updated(config_of(name), part(params), *map(part, gradients))
        assert_near(found, part(whole))


@pytest.mark.parametrize("name", [OptimizerName.ADAMW, OptimizerName.LION, OptimizerName.SGD])
def test_pieces_of_a_shard_are_updated_as_in_the_whole(name: OptimizerName) -> None:
    config, params = config_of(name, decayed=Decayed.BLOCKS), draw(0)
    whole, _ = updated(config, params, draw(1), draw(2))
    shard = OptimizerShard(index=1, count=3)
    pieces = map(shard.pieces, (params, draw(1), draw(2)))
    found, _ = updated(config, *pieces, decayed=decay_mask(config)(params))
    assert_near(found, shard.pieces(whole))


def test_masks_of_weight_decay() -> None:
    params = draw(0)
    kinds = {kind: decay_mask(OptimizerConfig(decayed=kind))(params) for kind in Decayed}
    assert kinds[Decayed.MATRICES] == matrices(params)
    assert all(jax.tree.leaves(kinds[Decayed.ALL]))
    blocks = kinds[Decayed.BLOCKS]
    assert blocks["blocks"] == kinds[Decayed.MATRICES]["blocks"]
    assert not any(jax.tree.leaves([blocks["embed"], blocks["head"]]))
    assert kinds[Decayed.MATRICES]["embed"]["tokens"]


def orthogonalised(matrix: np.ndarray) -> np.ndarray:
    """Return five steps of Newton and Schulz with Jordan's coefficients, in plain NumPy."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).astype(np.float64)
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


def test_muon_orthogonalises_matrices_of_layers_and_leaves_the_rest_to_adam() -> None:
    params, gradient = draw(0), draw(1)
    found, _ = updated(config_of(OptimizerName.MUON, weight_decay=0.0), params, gradient)
    adam = optax.adam(0.1, b1=0.9, b2=0.95, eps=1e-8, nesterov=True)
    changes, _ = adam.update(gradient, adam.init(params), params)
    by_adam = jax.tree.map(jnp.add, params, changes)
    moved = jax.tree.map(lambda a, b: np.asarray(a - b), found, params)

    def assert_is(step: np.ndarray, of: Any) -> None:
        matrix = np.asarray(of)
        # The first step of a Nesterov momentum is a multiple of the gradient, which the norm
        # divides away; updates have the root mean square of MUON_RMS for a square of its size.
        expected = orthogonalised(matrix) * MUON_RMS * np.sqrt(max(matrix.shape))
        np.testing.assert_allclose(step, -0.1 * expected, rtol=2e-3, atol=2e-4)

    for layer in range(3):
        up, of_up = (each["blocks"]["up"]["kernel"][layer] for each in (moved, gradient))
        assert_is(up, of_up)
        for kind in range(3):  # queries, keys and values are matrices of their own
            step = moved["blocks"]["qkv"]["kernel"][layer][:, kind]
            assert_is(step, gradient["blocks"]["qkv"]["kernel"][layer][:, kind])
    np.testing.assert_allclose(found["head"]["scale"], by_adam["head"]["scale"], rtol=1e-4)
    bias = (each["blocks"]["up"]["bias"] for each in (found, by_adam))
    np.testing.assert_allclose(*bias, rtol=1e-4)


def test_adafactor_is_that_of_optax_on_each_layer_alone() -> None:
    config, params = config_of(OptimizerName.ADAFACTOR, weight_decay=0.0), draw(0)
    gradients = (draw(1), draw(2))
    found, state = updated(config, params, *gradients)
    rate = learning_rate(config, num_steps=9)
    theirs = optax.adafactor(rate)
    update = jax.jit(theirs.update)

    def layer(tree: Any, number: int) -> Any:
        return {**tree, "blocks": jax.tree.map(lambda leaf: leaf[number], tree["blocks"])}

    for number in range(3):
        alone = layer(params, number)
        own = theirs.init(alone)
        for each in gradients:
            changes, own = update(layer(each, number), own, alone)
            alone = jax.tree.map(jnp.add, alone, changes)
        assert_near(layer(found, number), alone)
    moments = moments_of(state)
    shapes = {name: each["blocks"]["wide"]["kernel"].shape for name, each in moments.items()}
    assert shapes == {"v_row": (3, 128), "v_col": (3, 130), "v": (3, 1)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decay_fraction": 0.0}, "`decay_fraction` must be above 0 and at most 1, not 0.0"),
        ({"beta2": 1.0}, "`beta2` must be from 0 to 0.9999999404, not 1.0"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerConfig(**changes)
