"""Cross-entropy in chunks against the same in one piece and in plain terms; what it holds."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import Array

from jaxpipe.models.kernels.cross_entropy import IGNORED, chunk_tokens, cross_entropy
from jaxpipe.runtime.data.order import samples

pytestmark = pytest.mark.slow

DIM, VOCABULARY = 8, 21


def plain(x: Array, rows: Array, targets: Array) -> Array:
    logits = x @ rows.T
    return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(x)), targets])


def with_gradients(loss: Callable[..., Array]) -> Callable[..., tuple[Array, tuple[Array, Array]]]:
    """Return the loss with its gradients of `x` and `rows`, as one function to compile."""
    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


plain_with_gradients = with_gradients(plain)


def in_chunks(logits_bytes: int) -> Callable[[Array, Array, Array], Array]:
    return lambda x, rows, targets: cross_entropy(x, rows, targets, logits_bytes=logits_bytes)


def draw(tokens: int, *, vocabulary: int = VOCABULARY, dtype: str = "float32") -> list[Array]:
    source = np.random.default_rng(tokens)
    x, rows = source.normal(size=(tokens, DIM)), source.normal(size=(vocabulary, DIM))
    targets = jnp.asarray(source.integers(0, vocabulary, tokens), jnp.int32)
    return [jnp.asarray(x, dtype), jnp.asarray(rows, dtype), targets]


@pytest.mark.parametrize("tokens_at_a_time", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("tokens", [1, 2, 7, 12])
def test_value_and_gradients_are_the_plain_ones(tokens: int, tokens_at_a_time: int) -> None:
    arguments = draw(tokens)
    ours = in_chunks(tokens_at_a_time * 4 * VOCABULARY)
    found, expected = with_gradients(ours)(*arguments), plain_with_gradients(*arguments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected
    )


def test_a_scaled_cotangent_scales_the_gradients() -> None:
    arguments = draw(7)
    loss = in_chunks(2 * 4 * VOCABULARY)
    _, once = with_gradients(loss)(*arguments)
    _, scaled = with_gradients(lambda *a: 1024 * loss(*a))(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(1024 * a, b), once, scaled)


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("tokens_at_a_time", [1, 3, 100])
def test_with_frozen_rows_the_gradient_is_the_same_from_two_products(
    tokens_at_a_time: int, softcap: float
) -> None:
    x, rows, targets = draw(7)
    targets = targets.at[2].set(IGNORED)

    def loss(x: Array, rows: Array) -> Array:
        limit = tokens_at_a_time * 4 * VOCABULARY
        return 3 * cross_entropy(x, rows, targets, logits_bytes=limit, softcap=softcap)

    of_x = jax.jit(jax.grad(loss))
    _, (expected, _) = with_gradients(loss)(x, rows)
    np.testing.assert_allclose(of_x(x, rows), expected, rtol=1e-5, atol=1e-6)
    assert str(jax.make_jaxpr(of_x)(x, rows)).count("dot_general") == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tokens_at_a_time", [3, 100])
def test_statistics_are_float32_whatever_the_operands_are(
    dtype: str, tokens_at_a_time: int
) -> None:
    x, rows, targets = draw(7, dtype=dtype)
    loss, gradients = with_gradients(in_chunks(tokens_at_a_time * 4 * VOCABULARY))(x, rows, targets)
    assert loss.dtype == jnp.float32
    assert {g.dtype.name for g in gradients} == {dtype}
    exact = jax.jit(plain)(x.astype(jnp.float32), rows.astype(jnp.float32), targets)
    np.testing.assert_allclose(loss, exact, rtol=1e-5)


@pytest.mark.parametrize("tokens_at_a_time", [2, 100])
@pytest.mark.parametrize("target", [-VOCABULARY - 1, -1, VOCABULARY, VOCABULARY + 9])
def test_a_target_outside_the_vocabulary_is_noticed(target: int, tokens_at_a_time: int) -> None:
    x, rows, targets = draw(5)
    loss = jax.jit(in_chunks(tokens_at_a_time * 4 * VOCABULARY))
    assert np.isnan(loss(x, rows, targets.at[3].set(target)))


@settings(max_examples=100, deadline=None)
@given(tokens=st.integers(1, 5000), vocabulary=st.integers(1, 60000), limit=st.integers(1, 10**9))
def test_chunks_cover_the_tokens_within_the_limit(tokens: int, vocabulary: int, limit: int) -> None:
    chunk = chunk_tokens(tokens, vocabulary, logits_bytes=limit)
    assert 1 <= chunk <= tokens
    assert chunk == 1 or chunk * vocabulary * 4 <= limit
    assert chunk == tokens or tokens * vocabulary * 4 > limit


def test_the_peak_of_memory_is_that_of_one_chunk() -> None:
    tokens, vocabulary, chunk = 512, 4096, 32
    arguments = draw(tokens, vocabulary=vocabulary)
    all_logits = tokens * vocabulary * 4

    def peak(logits_bytes: int) -> int:
        step: Any = with_gradients(in_chunks(logits_bytes))
        memory = step.lower(*arguments).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    assert peak(all_logits) >= all_logits
    # A chunk's logits and their gradient, and room for the rest: x, rows, and what XLA copies.
    assert peak(all_logits * chunk // tokens) <= 4 * all_logits * chunk // tokens


@pytest.mark.parametrize("tokens_at_a_time", [3, 100])
def test_bounded_logits_are_the_plain_ones(tokens_at_a_time: int) -> None:
    arguments, bound = draw(7), 1.5

    def ours(x: Array, rows: Array, targets: Array) -> Array:
        held = tokens_at_a_time * 4 * VOCABULARY
        return cross_entropy(x, rows, targets, logits_bytes=held, softcap=bound)

    def bounded(x: Array, rows: Array, targets: Array) -> Array:
        logits = bound * jnp.tanh(x @ rows.T / bound)
        return -jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(x)), targets])

    found, expected = (with_gradients(each)(*arguments) for each in (ours, bounded))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected
    )


@pytest.mark.parametrize("tokens_at_a_time", [3, 100])
def test_ignored_targets_add_nothing(tokens_at_a_time: int) -> None:
    x, rows, targets = draw(7)
    kept = np.array([0, 2, 5])
    masked = jnp.full_like(targets, IGNORED).at[kept].set(targets[kept])
    ours = in_chunks(tokens_at_a_time * 4 * VOCABULARY)
    loss, (of_x, of_rows) = with_gradients(ours)(x, rows, masked)
    expected, (of_kept, of_rows_kept) = plain_with_gradients(x[kept], rows, targets[kept])
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(of_rows, of_rows_kept, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x[kept], of_kept, rtol=1e-5, atol=1e-5)
    assert not np.delete(np.asarray(of_x), kept, axis=0).any()


def test_data_and_models_agree_on_the_target_that_does_not_count() -> None:
    assert IGNORED == samples.IGNORED
