"""Laws of outer loops: what they equal in special cases, for any data and hyperparameters."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.outer import OuterConfig
from tests.oracles.outer_loop import Setting, diloco
from tests.outer.replay import Parameters, Replay, replay

NAMES = ("embed.tokens", "blocks.0.up", "blocks.1.up", "blocks.2.up", "head.scale")
SIZE, LEARNING_RATE = 3, 0.05
ROUNDING = 2e-6
"""Relative; a few units in the last place of float32 for each of some ten steps."""

seeds = st.integers(0, 2**32 - 1)


def start(seed: int) -> Parameters:
    drawn = np.random.default_rng(seed)
    return {name: drawn.normal(size=SIZE).astype(np.float32) for name in NAMES}


def gradient(local: Parameters, island: int, step: int, *, seed: int) -> Parameters:
    """Return the gradient of a quadratic loss; each island and step has its own."""
    drawn = np.random.default_rng([seed, island, step])
    found = {}
    for name, values in local.items():
        target, curvature = drawn.normal(size=SIZE), drawn.uniform(0.5, 2, SIZE)
        found[name] = (curvature * (values - target)).astype(np.float32)
    return found


def sgd(local: Parameters, island: int, step: int, *, seed: int) -> Parameters:
    of_island = gradient(local, island, step, seed=seed)
    rate = np.float32(LEARNING_RATE)
    return {name: values - rate * of_island[name] for name, values in local.items()}


def trained(
    config: OuterConfig, *, seed: int, num_steps: int, weights: tuple[float, ...] = ()
) -> Replay:
    run = replay(start(seed), config, num_steps=num_steps, weights=weights)
    for done in range(1, num_steps + 1):
        run.step(done, partial(sgd, seed=seed))
    return run


def assert_close(found: Parameters, expected: Parameters, *, rounding: float = ROUNDING) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rounding, atol=rounding)


def same_bits(found: Parameters, expected: Parameters) -> bool:
    return all(found[name].tobytes() == expected[name].tobytes() for name in expected)


@given(seeds, st.integers(1, 5))
def test_one_inner_step_of_sgd_is_synchronous_data_parallelism(seed: int, islands: int):
    config = OuterConfig(islands=islands, every=1, learning_rate=1.0, momentum=0.0)
    found = trained(config, seed=seed, num_steps=8).anchor
    params = start(seed)
    for step in range(8):
        each = [gradient(params, island, step, seed=seed) for island in range(islands)]
        params = {
            name: values - np.float32(LEARNING_RATE) * np.mean([g[name] for g in each], axis=0)
            for name, values in params.items()
        }
    assert_close(found, params)


@given(seeds, st.sampled_from([1, 2, 3, 6]))
def test_one_island_without_momentum_is_plain_training(seed: int, every: int):
    config = OuterConfig(islands=1, every=every, learning_rate=1.0, momentum=0.0)
    found = trained(config, seed=seed, num_steps=6).anchor
    params = start(seed)
    for step in range(6):
        params = sgd(params, 0, step, seed=seed)
    assert_close(found, params)


@given(seeds, st.sampled_from([2, 4, 8]))
def test_islands_with_the_same_data_are_one_island(seed: int, islands: int):
    def alike(local: Parameters, island: int, step: int) -> Parameters:
        return sgd(local, 0, step, seed=seed)

    found = []
    for number in (1, islands):
        run = replay(start(seed), OuterConfig(islands=number, every=3), num_steps=6)
        for done in range(1, 7):
            run.step(done, alike)
        found.append(run.anchor)
    # Halves are exact, and so is their sum; three eighths of a number are rounded.
    assert islands != 2 or same_bits(*found)
    assert_close(*found)


@given(
    seeds,
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.floats(0.1, 1.0),
    st.floats(0.0, 0.95),
)
def test_one_fragment_without_delay_is_diloco(
    seed: int, islands: int, every: int, eta: float, mu: float
):
    config = OuterConfig(islands=islands, every=every, learning_rate=eta, momentum=mu)
    weights = tuple(np.random.default_rng(seed).dirichlet(np.ones(islands)).tolist())
    found = trained(config, seed=seed, num_steps=8, weights=weights)
    inner = partial(_flat_sgd, seed=seed)
    flat = np.concatenate([*start(seed).values()]).astype(np.float64)
    setting = Setting(weights=weights, every=every, eta=eta, mu=mu)
    anchor, momentum, _ = diloco(flat, inner, setting, num_steps=8)
    np.testing.assert_allclose(_flat(found.anchor), anchor, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(found.states[0].momentum, momentum, rtol=2e-4, atol=2e-5)


def _flat(params: Parameters) -> np.ndarray:
    return np.concatenate([params[name] for name in NAMES])


def _flat_sgd(flat: np.ndarray, island: int, step: int, *, seed: int) -> np.ndarray:
    local: Parameters = dict(zip(NAMES, flat.reshape(len(NAMES), SIZE), strict=True))
    of_island = gradient(local, island, step, seed=seed)
    return flat - LEARNING_RATE * np.concatenate([of_island[name] for name in NAMES])


@given(seeds)
def test_any_number_of_steps_on_equal_quadratics_is_synchronous_sgd(seed: int):
    curvature = np.random.default_rng(seed).uniform(0.5, 2, SIZE)

    def inner(flat: np.ndarray, island: int, step: int) -> np.ndarray:
        target = np.random.default_rng([seed, island, step]).normal(size=SIZE)
        return flat - LEARNING_RATE * curvature * (flat - target)

    def synchronous(flat: np.ndarray, island: int, step: int) -> np.ndarray:
        return np.mean([inner(flat, island, step) for island in range(3)], axis=0)

    def params_of(found: Callable[..., np.ndarray]):
        return lambda local, island, step: {
            "blocks.0.up": found(local["blocks.0.up"], island, step).astype(np.float32)
        }

    first = {"blocks.0.up": np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)}
    config = OuterConfig(islands=3, every=4, learning_rate=1.0, momentum=0.0)
    run = replay(first, config, num_steps=8)
    for done in range(1, 9):
        run.step(done, params_of(inner))
    expected = first
    for step in range(8):
        expected = params_of(synchronous)(expected, 0, step)
    assert_close(run.anchor, expected)


@given(seeds)
def test_an_island_of_weight_zero_changes_no_bit(seed: int):
    two = trained(OuterConfig(islands=2, every=2), seed=seed, num_steps=2, weights=(0.25, 0.75))
    config = OuterConfig(islands=3, every=2)
    three = trained(config, seed=seed, num_steps=2, weights=(0.25, 0.75, 0.0))
    assert same_bits(three.anchor, two.anchor)


@given(seeds, st.sampled_from([1, 2]))
def test_steps_after_the_send_do_not_change_the_sum(seed: int, delay: int):
    config = OuterConfig(islands=2, every=4, delay=delay)
    late, at_once = (
        replay(start(seed), each, num_steps=8) for each in (config, OuterConfig(islands=2, every=4))
    )
    for done in range(1, 5 + delay):
        late.step(done, partial(sgd, seed=seed))
        if done <= 4:
            at_once.step(done, partial(sgd, seed=seed))
    assert same_bits(late.anchor, at_once.anchor)
    # Without a local fraction, the steps since the send are thrown away.
    assert all(same_bits(local, late.anchor) for local in late.locals_)


@given(seeds, st.sampled_from([(1, 0), (2, 1), (4, 0)]), st.sampled_from([0.0, 0.5]))
def test_all_islands_end_at_the_anchor(seed: int, parts: tuple[int, int], kept: float):
    fragments, delay = parts
    config = OuterConfig(islands=3, every=4, fragments=fragments, delay=delay, local_fraction=kept)
    run = trained(config, seed=seed, num_steps=12)
    assert not run.sums
    assert all(same_bits(local, run.anchor) for local in run.locals_)


@given(seeds, st.integers(2, 4))
def test_fragments_with_plain_averages_lose_no_inner_step(seed: int, islands: int):
    """With rate 1 and no momentum, one island ends where plain training does, fragments or not."""
    for fragments in (2, 4):
        config = OuterConfig(
            islands=1, every=4, fragments=fragments, learning_rate=1.0, momentum=0.0
        )
        found = trained(config, seed=seed + islands, num_steps=8).anchor
        params = start(seed + islands)
        for step in range(8):
            params = sgd(params, 0, step, seed=seed + islands)
        assert_close(found, params)


def test_an_island_that_keeps_everything_is_never_configured():
    with pytest.raises(ValueError, match="`local_fraction` must be from 0 to below 1, not 1"):
        OuterConfig(islands=2, local_fraction=1.0)
