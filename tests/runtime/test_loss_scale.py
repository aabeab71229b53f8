"""The loss scale falls and rises as it should, and leaves no trace in what it scales."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from jaxpipe.runtime.loss_scale import (
    LossScale,
    adjust,
    initial_loss_scale,
    is_finite,
    taken_if,
    unscaled_square_norm,
)
from jaxpipe.runtime.optimizer import clip_factor
from jaxpipe.runtime.settings import LossScaleConfig, OptimizerConfig

CONFIG = LossScaleConfig(initial=2.0**10, growth_steps=3, largest=2.0**12)
ADJUST = jax.jit(partial(adjust, CONFIG))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), max_size=30))
def test_it_follows_the_rule_step_by_step(steps: list[bool]) -> None:
    state = initial_loss_scale(CONFIG)
    scale, good_steps, skipped = CONFIG.initial, 0, 0
    for finite in steps:
        state = ADJUST(state, finite=jnp.bool_(finite))
        good_steps = good_steps + 1 if finite else 0
        if not finite:
            scale, skipped = max(scale / 2, 1), skipped + 1
        elif good_steps == CONFIG.growth_steps:
            scale, good_steps = min(scale * 2, CONFIG.largest), 0
        found = (float(state.scale), int(state.good_steps), int(state.skipped))
        assert found == (scale, good_steps, skipped)


def test_it_never_falls_below_one() -> None:
    state = initial_loss_scale(CONFIG)
    for _ in range(12):
        state = ADJUST(state, finite=jnp.bool_(False))
    assert float(state.scale) == 1
    assert int(state.skipped) == 12


@pytest.mark.parametrize("bad", [jnp.inf, -jnp.inf, jnp.nan])
def test_a_bad_gradient_skips_the_step(bad: float) -> None:
    gradients = jnp.array([1.0, bad, 2.0])
    finite = is_finite(jnp.vdot(gradients, gradients))
    old = {"weights": jnp.arange(3.0), "count": jnp.int32(4)}
    new = {"weights": old["weights"] - gradients, "count": jnp.int32(5)}
    jax.tree.map(np.testing.assert_array_equal, taken_if(finite, new, old), old)


def test_the_step_after_is_taken() -> None:
    new, old = jnp.arange(3.0), jnp.zeros(3)
    np.testing.assert_array_equal(taken_if(is_finite(jnp.float32(5)), new, old), new)


TARGET = jnp.array([0.5, -2.0, 3.0])


def step(weights: Array, state: LossScale, size: float) -> tuple[Array, LossScale]:
    """Take one clipped step of gradient descent through a product in float16."""

    def loss(weights: Array) -> Array:
        error = (weights.astype(jnp.float16) - TARGET.astype(jnp.float16)) * jnp.float16(size)
        return 0.5 * jnp.sum(error.astype(jnp.float32) ** 2)

    gradients = jax.vjp(loss, weights)[1](state.scale)[0].astype(jnp.float32)
    square_norm = jnp.vdot(gradients, gradients)
    finite = is_finite(square_norm)
    factor = clip_factor(OptimizerConfig(), unscaled_square_norm(square_norm, state))
    updated = optax.apply_updates(weights, -0.1 * gradients * factor / state.scale)
    assert isinstance(updated, Array)
    return taken_if(finite, updated, weights), adjust(CONFIG, state, finite=finite)


def test_without_overflow_a_power_of_two_changes_no_bit() -> None:
    one = LossScale(scale=jnp.float32(1), good_steps=jnp.int32(0), skipped=jnp.int32(0))
    weights = jnp.array([0.1, 0.2, 0.3])
    plain, _ = step(weights, one, 1.0)
    scaled, state = step(weights, initial_loss_scale(CONFIG), 1.0)
    np.testing.assert_array_equal(plain, scaled)
    assert int(state.skipped) == 0


def test_gradients_that_vanish_in_float16_survive() -> None:
    one = LossScale(scale=jnp.float32(1), good_steps=jnp.int32(0), skipped=jnp.int32(0))
    weights = jnp.zeros(3)
    lost, _ = step(weights, one, 3e-5)
    kept, _ = step(weights, initial_loss_scale(CONFIG), 3e-5)
    np.testing.assert_array_equal(lost, weights)
    assert (kept != weights).all()


def test_training_goes_on_after_an_overflow() -> None:
    weights, state = jnp.array([100.0, 200.0, 300.0]), initial_loss_scale(CONFIG)
    after_first, state = step(weights, state, 1.0)
    np.testing.assert_array_equal(after_first, weights)
    for _ in range(8):
        weights, state = step(weights, state, 1.0)
    assert int(state.skipped) >= 1
    assert (weights < jnp.array([100.0, 200.0, 300.0])).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial": 0.5}, "`initial` must be from 1 to `largest`, .*, is 0.5"),
        ({"initial": 2.0**30}, "`initial` must be from 1 to `largest`"),
        ({"factor": 1.0}, "`factor` must be above 1, is 1.0"),
        ({"growth_steps": 0}, "`growth_steps` must be above 0, is 0"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LossScaleConfig(**change)
