"""Attention by the custom calls has the output and the gradients of the product form."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.attention_calls import AttentionCalls, offered, offered_calls
from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.kernels.attention import grouped_attention, self_attention
from jaxpipe.models.kernels.scores import Scores
from jaxpipe.runtime.blas.custom_calls import Blas
from tests.runtime.blas.conftest import attention_by, blas_of

BLAS = pytest.mark.parametrize("calls", ["plain", "mkl"], indirect=True)


@pytest.fixture(name="calls", scope="module")
def attention_calls(request: pytest.FixtureRequest, plain_blas: Blas) -> Iterator[AttentionCalls]:
    """The calls with the products of a BLAS, on offer."""
    name = getattr(request, "param", "plain")
    with attention_by(blas_of(name, plain_blas)) as calls, offered(calls):
        yield calls


def heads(number: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(number).standard_normal(shape, np.float32))


def results(attention: Callable[..., jax.Array], *parts: jax.Array) -> Any:
    """Return output and gradients, compiled; how many calls are in the program."""
    shape = jax.eval_shape(attention, *parts)

    def both(*parts: jax.Array) -> Any:
        output, backward = jax.vjp(attention, *parts)
        return output, backward(heads(9, *shape.shape).astype(shape.dtype))

    lowered = jax.jit(both).lower(*parts)
    num_calls = lowered.as_text().count("call @jaxpipe_attention")
    num_calls += lowered.as_text().count('custom_call @"jaxpipe_attention')
    return lowered.compile()(*parts), num_calls


def check(attention: Callable[..., jax.Array], *parts: jax.Array, tolerance: float = 2e-5) -> None:
    """Check a form that takes `form` against products in float32."""
    (output, gradients), num_calls = results(partial(attention, form=Attention.AUTO), *parts)
    assert num_calls == 2
    in_float32 = [part.astype(jnp.float32) for part in parts]
    expected, num_calls = results(partial(attention, form=Attention.PRODUCT), *in_float32)
    assert num_calls == 0
    for one, other in zip(
        jax.tree.leaves((output, gradients)), jax.tree.leaves(expected), strict=True
    ):
        assert one.dtype == parts[0].dtype
        margin = tolerance * float(abs(other).max())
        np.testing.assert_allclose(np.float32(one), other, rtol=tolerance, atol=margin)


@BLAS
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("batch", "seq", "num_heads", "width"),
    # Lengths and widths around a block and a vector, and the shortest ones.
    [(2, 64, 2, 16), (1, 33, 3, 20), (2, 31, 1, 7), (1, 300, 2, 8), (3, 1, 2, 4), (1, 128, 1, 64)],
)
def test_queries_keys_and_values_in_one_array(
    calls: AttentionCalls, batch: int, seq: int, num_heads: int, width: int, causal: bool
) -> None:
    qkv = heads(0, batch, seq, 3, num_heads * width)
    check(partial(self_attention, num_heads=num_heads, causal=causal), qkv)


@BLAS
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_heads_that_share_keys(calls: AttentionCalls, kv_heads: int) -> None:
    q, k, v = heads(0, 2, 40, 6, 8), heads(1, 2, 40, kv_heads, 8), heads(2, 2, 40, kv_heads, 8)
    check(partial(grouped_attention, scores=Scores(scale=0.3)), q, k, v)


@BLAS
def test_bfloat16_is_computed_in_float32(calls: AttentionCalls) -> None:
    epsilon = float(jnp.finfo(jnp.bfloat16).eps)
    qkv = heads(0, 2, 40, 3, 2 * 16).astype(jnp.bfloat16)
    check(partial(self_attention, num_heads=2), qkv, tolerance=epsilon)
    parts = [heads(n, 2, 40, 6 // (n + 1), 8).astype(jnp.bfloat16) for n in (0, 1, 1)]
    check(partial(grouped_attention, scores=Scores()), *parts, tolerance=epsilon)


def test_large_scores_keep_their_order(calls: AttentionCalls) -> None:
    """Most weights are far below what float32 can add to the largest, or holds at all."""
    qkv = 30 * heads(0, 1, 40, 3, 8)
    (output, gradients), _ = results(
        partial(self_attention, num_heads=1, form=Attention.AUTO, causal=False), qkv
    )
    q, k, v = np.asarray(qkv[0], np.float64).transpose(1, 0, 2)
    scores = q @ k.T / np.sqrt(8)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = weights @ v / weights.sum(axis=-1, keepdims=True)
    # A score of thousands has an error of 2e-4 in float32.
    np.testing.assert_allclose(output, expected, rtol=2e-3, atol=0.1)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_not_a_number_is_not_hidden(calls: AttentionCalls) -> None:
    qkv = heads(0, 1, 40, 3, 8).at[0, 20, 1, 0].set(jnp.nan)
    attention = partial(self_attention, num_heads=1, form=Attention.AUTO)
    ((output, (of_qkv,)), _) = results(attention, qkv)
    # Queries from that key on read it.
    assert not np.isnan(output[:20]).any()
    assert np.isnan(output[20:]).all()
    assert np.isnan(of_qkv).any()


@pytest.mark.parametrize(
    ("scores", "dtype", "segments"),
    [
        (Scores(window=4), jnp.float32, False),
        (Scores(softcap=2.0), jnp.float32, False),
        (Scores(), jnp.float16, False),
        (Scores(), jnp.float32, True),
    ],
)
def test_other_attention_is_products(
    calls: AttentionCalls, scores: Scores, dtype: Any, segments: bool
) -> None:
    parts = [heads(n, 1, 16, 2, 8).astype(dtype) for n in range(3)]
    packed = jnp.zeros((1, 16), jnp.int32) if segments else None
    attention = partial(grouped_attention, form=Attention.AUTO, scores=scores, segments=packed)
    assert results(attention, *parts)[1] == 0


def test_nobody_else_is_offered_the_calls(calls: AttentionCalls) -> None:
    with offered(None):
        assert offered_calls() is None
        attention = partial(self_attention, num_heads=1, form=Attention.AUTO)
        assert results(attention, heads(0, 1, 16, 3, 8))[1] == 0
    assert offered_calls() == calls


@pytest.mark.parametrize(
    ("shapes", "result", "attributes", "message"),
    [
        (((1, 4, 3, 2, 8),), (1, 4, 2, 8), {}, "`scale` and `causal` are missing"),
        (((1, 4, 2, 2, 8),), (1, 4, 2, 8), None, "not queries, keys and values"),
        (((1, 4, 3, 8),), (1, 4, 2, 8), None, "queries must be float32, by heads"),
        (((1, 4, 3, 8),) * 2, (1, 4, 2, 8), None, "not one array or three"),
        (((1, 4, 3, 8), (1, 4, 2, 8), (1, 4, 2, 8)), (1, 4, 3, 8), None, "must divide those"),
        (((1, 4, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8)), (1, 4, 2, 8), None, "queries and keys"),
        (((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 1, 8)), (1, 4, 2, 8), None, "keys and values"),
        (((1, 4, 3, 2, 8),), (1, 5, 2, 8), None, "the results have other shapes"),
    ],
)
def test_wrong_calls_are_errors(
    calls: AttentionCalls, shapes: Any, result: Any, attributes: Any, message: str
) -> None:
    if attributes is None:
        attributes = {"scale": np.float32(1), "causal": np.bool_(True)}
    results = (
        jax.ShapeDtypeStruct(result, np.float32),
        jax.ShapeDtypeStruct((1, 2, 4), np.float32),
    )
    call = jax.ffi.ffi_call(calls.forward, results)
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(jax.jit(partial(call, **attributes))(*map(jnp.ones, shapes)))
