"""The outer step by hand, and in parts."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxpipe.errors import ConfigError
from jaxpipe.outer import (
    OuterOptimizer,
    eager_step,
    fresh_lead,
    fresh_state,
    mean_step,
    mixed,
    outer_gradient,
    outer_step,
    token_weights,
)

NESTEROV = OuterOptimizer(learning_rate=0.7, momentum=0.9)
vectors = arrays(np.float32, 6, elements=st.floats(-8, 8, width=32))


@given(vectors, vectors, vectors)
def test_the_first_two_steps_are_those_by_hand(
    anchor: np.ndarray, first: np.ndarray, second: np.ndarray
):
    once = outer_step(fresh_state(anchor), first, NESTEROV)
    np.testing.assert_allclose(once.anchor, anchor - 0.7 * 1.9 * first, rtol=1e-5, atol=1e-5)
    twice = outer_step(once, second, NESTEROV)
    momentum = 0.9 * first + second
    expected = once.anchor - 0.7 * (second + 0.9 * momentum)
    np.testing.assert_allclose(twice.anchor, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(twice.momentum, momentum, rtol=1e-5, atol=1e-5)


@given(st.lists(vectors, min_size=1, max_size=5), st.lists(vectors, min_size=5, max_size=5))
def test_anchor_and_lead_are_an_eager_anchor_of_its_own(
    own: list[np.ndarray], others: list[np.ndarray]
):
    """Published: each island has an anchor; here they have one in common, and what is ahead."""
    published = (np.zeros(6), np.zeros(6))
    common, ahead, late = fresh_state(np.zeros(6, np.float32)), fresh_lead(own[0]), np.zeros(6)
    before = np.zeros(6, np.float32)
    for mine, theirs in zip(own, others, strict=False):
        momentum = 0.9 * published[1] + mine + late
        published = (published[0] - 0.7 * (mine + late + 0.9 * momentum), momentum)
        common, ahead = (
            outer_step(common, before, NESTEROV),
            eager_step(ahead, mine, NESTEROV),
        )
        np.testing.assert_allclose(common.anchor + ahead.lead, published[0], rtol=1e-4, atol=1e-4)
        before, late = mine + theirs, theirs


def test_a_constant_outer_gradient_gains_the_published_factor():
    before = state = fresh_state(np.zeros(1, np.float32))
    one = np.ones(1, np.float32)
    for _ in range(200):
        before, state = state, outer_step(state, one, NESTEROV)
    assert before.anchor - state.anchor == pytest.approx(0.7 / (1 - 0.9), rel=1e-4)


@given(vectors, vectors, vectors, st.integers(0, 6))
def test_a_vector_may_be_stepped_in_parts(
    anchor: np.ndarray, momentum_of: np.ndarray, gradient: np.ndarray, cut: int
):
    def stepped(part: slice) -> np.ndarray:
        state = outer_step(fresh_state(anchor[part]), momentum_of[part], NESTEROV)
        return outer_step(state, gradient[part], NESTEROV).anchor

    parts = np.concatenate([stepped(slice(0, cut)), stepped(slice(cut, 6))])
    assert parts.tobytes() == stepped(slice(0, 6)).tobytes()


@given(vectors, vectors, vectors)
def test_a_mean_step_leaves_the_momentum(anchor: np.ndarray, first: np.ndarray, second: np.ndarray):
    state = outer_step(fresh_state(anchor), first, NESTEROV)
    after = mean_step(state, second)
    assert after.momentum.tobytes() == state.momentum.tobytes()
    np.testing.assert_array_equal(after.anchor, state.anchor - second)


@given(vectors, vectors)
def test_an_outer_gradient_is_old_minus_new(anchor: np.ndarray, local: np.ndarray):
    found = outer_gradient(anchor, local, weight=1.0)
    np.testing.assert_array_equal(found, anchor - local)
    np.testing.assert_array_equal(outer_gradient(anchor, local, weight=0.0), 0)


@given(vectors, vectors)
def test_mixing_has_exact_ends(local: np.ndarray, anchor: np.ndarray):
    anchor[0] = np.inf
    assert mixed(local, anchor, local_fraction=0.0).tobytes() == anchor.tobytes()
    assert mixed(local, anchor, local_fraction=1.0).tobytes() == local.tobytes()
    half = mixed(local[1:], anchor[1:], local_fraction=0.5)
    np.testing.assert_allclose(half, (local[1:] + anchor[1:]) / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tokens", [(0, 0), (1, -1), (float("nan"),)])
def test_weights_need_tokens(tokens: tuple[float, ...]):
    with pytest.raises(ConfigError, match=re.escape("`tokens` of the islands")):
        token_weights(tokens)


@given(st.lists(st.integers(0, 10**9), min_size=1).filter(any))
def test_weights_are_shares(tokens: list[int]):
    weights = token_weights(tokens)
    assert sum(weights) == pytest.approx(1)
    assert [weight == 0 for weight in weights] == [each == 0 for each in tokens]
