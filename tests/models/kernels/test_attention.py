"""Attention in products against JAX's own; the choice between it and the fused kernel."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import Array

from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.kernels import attention
from jaxpipe.models.kernels.attention import (
    MAX_PARTS,
    MIN_PART,
    grouped_attention,
    parts,
    self_attention,
)
from jaxpipe.models.kernels.scores import Scores

pytestmark = pytest.mark.slow

HEADS, WIDTH = 2, 8


def draw(batch: int, seq: int, dtype: str = "float32") -> tuple[Array, Array]:
    """Return random qkv, and a random gradient of the output."""
    source = np.random.default_rng(seq)
    dim = HEADS * WIDTH
    qkv, of_output = (
        source.normal(size=(batch, seq, 3, dim)),
        source.normal(size=(batch, seq, dim)),
    )
    return jnp.asarray(qkv, dtype), jnp.asarray(of_output, dtype)


def ours(qkv: Array, *, causal: bool = True) -> Array:
    mixed = self_attention(qkv, num_heads=HEADS, form=Attention.PRODUCT, causal=causal)
    return mixed.reshape(*qkv.shape[:2], -1)


def theirs(qkv: Array, *, causal: bool = True) -> Array:
    batch, seq, *_ = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(batch, seq, 3, HEADS, WIDTH), 2, 0)
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal).reshape(batch, seq, -1)


@partial(jax.jit, static_argnums=0)
def both(attend: Callable[[Array], Array], qkv: Array, of_output: Array) -> tuple[Array, Array]:
    """Return the output, and the gradient of qkv."""
    output, vjp = jax.vjp(attend, qkv)
    return output, vjp(of_output)[0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("batch", "seq"), [(1, 1), (3, 7), (1, MIN_PART - 1), (2, 2 * MIN_PART), (1, 3 * MIN_PART + 5)]
)
def test_output_and_gradient_are_those_of_jax(batch: int, seq: int, causal: bool) -> None:
    qkv, of_output = draw(batch, seq)
    results = (both(partial(attend, causal=causal), qkv, of_output) for attend in (ours, theirs))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_formats_keep_their_format_and_sum_in_float32(dtype: str) -> None:
    qkv, of_output = draw(1, 2 * MIN_PART, dtype)
    output, of_qkv = both(ours, qkv, of_output)
    assert output.dtype == of_qkv.dtype == dtype
    exact, exact_of_qkv = both(theirs, qkv.astype(jnp.float32), of_output.astype(jnp.float32))
    # Weights, output and gradients are each rounded once or twice; sums are not.
    step = float(jnp.finfo(dtype).eps)
    assert np.abs(output - exact).max() <= 2 * step * np.abs(exact).max()
    assert np.abs(of_qkv - exact_of_qkv).max() <= 3 * step * np.abs(exact_of_qkv).max()


def test_large_scores_do_not_overflow() -> None:
    qkv, of_output = draw(1, 9)
    output, of_qkv = both(ours, 1e4 * qkv, of_output)
    assert np.isfinite(output).all()
    assert np.isfinite(of_qkv).all()


@given(st.integers(1, 5000))
def test_parts_are_few_and_cover_the_sequence(sequence: int) -> None:
    cut = parts(sequence)
    assert [begin for begin, _ in cut] == [0, *(end for _, end in cut[:-1])]
    assert cut[-1][1] == sequence
    assert len(cut) <= MAX_PARTS
    assert len(cut) == 1 or all(end > begin for begin, end in cut)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_auto_is_the_product_without_a_gpu(dtype: str) -> None:
    if jax.default_backend() == "gpu":
        pytest.skip("a GPU has the fused kernel")
    qkv, _ = draw(2, 5, dtype)
    auto, product = (
        jax.jit(partial(self_attention, num_heads=HEADS, form=form))(qkv)
        for form in (Attention.AUTO, Attention.PRODUCT)
    )
    np.testing.assert_array_equal(auto, product)


@pytest.mark.parametrize(
    ("length", "width", "dtype", "capability", "is_fused"),
    [
        *((8, 64, "bfloat16", name, True) for name in ("8.0", "9.0", "10.3")),
        (8, 64, "float16", "8.6", True),
        (8, 64, "bfloat16", "7.0", False),  # a V100
        (8, 64, "bfloat16", "gfx942", False),
        (7, 64, "bfloat16", "9.0", False),
        (8, 12, "bfloat16", "9.0", False),
        (8, 64, "float32", "9.0", False),
    ],
)
def test_auto_is_the_fused_kernel_where_a_gpu_has_it(
    length: int,
    width: int,
    dtype: str,
    capability: str,
    is_fused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    q = jnp.zeros((2, length, HEADS, width), dtype)
    expected = Attention.FLASH if is_fused else Attention.PRODUCT
    assert attention.chosen_form(Attention.AUTO, q, Scores(causal=True)) is expected


def test_the_fused_kernel_is_asked_for_by_name() -> None:
    if jax.default_backend() == "gpu":
        pytest.skip("a GPU has the fused kernel")
    qkv, _ = draw(1, 4, "bfloat16")
    with pytest.raises(Exception, match=r"(?i)cudnn"):
        self_attention(qkv, num_heads=HEADS, form=Attention.FLASH)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("seq", "window", "softcap"), [(7, 0, 0.0), (2 * MIN_PART + 5, 150, 2.0)])
def test_groups_windows_and_bounds_are_those_of_jax(
    kv_heads: int, seq: int, window: int, softcap: float
) -> None:
    source = np.random.default_rng(seq)
    q, k, v = (
        jnp.asarray(source.normal(size=(2, seq, heads, WIDTH)), jnp.float32)
        for heads in (4, kv_heads, kv_heads)
    )
    of_output = jnp.asarray(source.normal(size=(2 * seq, 4 * WIDTH)), jnp.float32)
    scores = Scores(scale=0.3, window=window, softcap=softcap)

    def ours(q: Array, k: Array, v: Array) -> Array:
        return grouped_attention(q, k, v, form=Attention.PRODUCT, scores=scores)

    def theirs(q: Array, k: Array, v: Array) -> Array:
        # Keys for every head, all scores, and a mask.
        k, v = (jnp.repeat(each, 4 // kv_heads, axis=2) for each in (k, v))
        found = 0.3 * jnp.einsum("bqhd,bkhd->bhqk", q, k)
        found = softcap * jnp.tanh(found / softcap) if softcap else found
        behind = jnp.arange(seq)[:, None] - jnp.arange(seq)
        reads = (behind >= 0) & (behind < (window or seq))
        weights = jax.nn.softmax(jnp.where(reads, found, -jnp.inf), axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(2 * seq, -1)

    @partial(jax.jit, static_argnums=0)
    def both(attend: Callable, *qkv: Array) -> tuple[Array, ...]:
        output, vjp = jax.vjp(attend, *qkv)
        return output, *vjp(of_output)

    for found, expected in zip(both(ours, q, k, v), both(theirs, q, k, v), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("groups", "window"), [(1, 60), (2, 0)])
def test_tokens_read_their_own_segment_alone(groups: int, window: int) -> None:
    seq = 2 * MIN_PART + 9  # several parts, with segments across their edges
    source = np.random.default_rng(groups)
    q, of_output = (jnp.asarray(source.normal(size=(2, seq, 2, WIDTH)), "float32") for _ in "qo")
    k, v = (jnp.asarray(source.normal(size=(2, seq, 2 // groups, WIDTH)), "float32") for _ in "kv")
    cuts = np.sort(source.choice(seq, size=(2, 5), replace=False), axis=1)
    segments = np.array([np.searchsorted(cut, np.arange(seq), side="right") for cut in cuts])

    def own(q: Array, k: Array, v: Array) -> Array:
        how = Scores(window=window)
        found = grouped_attention(
            q, k, v, form=Attention.PRODUCT, scores=how, segments=jnp.asarray(segments)
        )
        return found.reshape(2, seq, 2, WIDTH)

    def plain(q: Array, k: Array, v: Array) -> Array:
        behind = np.arange(seq)[:, None] - np.arange(seq)
        reads = (behind >= 0) & (behind < (window or seq))
        mask = reads & (segments[:, :, None] == segments[:, None, :])
        return jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(mask[:, None]))

    def both(attend: Callable[..., Array]) -> tuple[Array, tuple[Array, ...]]:
        output, vjp = jax.vjp(attend, q, k, v)
        return output, vjp(of_output)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5),
        jax.jit(both, static_argnums=0)(own),
        jax.jit(both, static_argnums=0)(plain),
    )
