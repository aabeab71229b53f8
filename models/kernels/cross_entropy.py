"""Cross-entropy of a head in chunks of tokens, so that large logits never exist at once.

::

    x (tokens, dim) ─┬─ chunk 0 ─ @ rows.T ─ logits ─ logsumexp ─ sum ─┬─ loss
                     ├─ chunk 1 ─ ...                                  │
                     └─ chunk n ─ ...                                  ┘

One chunk keeps its logits for the backward. Of several only the logsumexp is kept, one float32 per
token, and the backward computes each chunk's logits again: a fourth product beside the three. Where
`rows` are frozen, the forward computes the gradient of x as well, and no logits are kept.

Cost: at most `logits_bytes` of logits, and as much again while they are differentiated.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal
from jaxtyping import Array, Float, Int

from jaxpipe.models.kernels.accumulation import accumulation_dtype

IGNORED = -100
"""The target of a token that does not count; its loss and its gradient are 0."""


_LEAST_TOKENS, _LEAST_LOGITS = 128, 2**20
"""A chunk has both at least, where chunks are left out: smaller products are less fast."""


class _Residuals(NamedTuple):
    """Residuals for the backward; `logits` are None if there are several chunks."""

    x: Array
    rows: Array
    targets: Array
    logsumexp: Array
    logits: Array | None


class _OfInput(NamedTuple):
    """The gradient of x for a cotangent of 1, where it is the only one."""

    of_x: Array


def cross_entropy(
    x: Float[Array, "tokens dim"],
    rows: Float[Array, "vocabulary dim"],
    targets: Int[Array, " tokens"],
    *,
    logits_bytes: int,
    softcap: float = 0.0,
) -> Float[Array, ""]:
    """Return -log p of the targets in nats, summed over all tokens, where p = softmax(x rows^T).

    With a `softcap` c, logits are c tanh(x rows^T / c). Logits, statistics and the sum are float32.
    Tokens with the target `IGNORED` add nothing; another target outside the vocabulary makes the
    loss NaN.

    >>> x, rows = jnp.zeros((3, 2)), jnp.zeros((4, 2))
    >>> print(f"{cross_entropy(x, rows, jnp.arange(3), logits_bytes=32) / math.log(4):.3f}")
    3.000
    """
    chunk = chunk_tokens(len(x), len(rows), logits_bytes=logits_bytes)
    return _cross_entropy(x, rows, targets, chunk, softcap)


def chunk_tokens(tokens: int, vocabulary: int, *, logits_bytes: int) -> int:
    """Return the number of tokens per chunk of float32 logits, in chunks as equal as possible.

    >>> chunk_tokens(2048, 50257, logits_bytes=2**26), chunk_tokens(100, 256, logits_bytes=2**26)
    (293, 100)
    """
    at_most = max(1, logits_bytes // (4 * vocabulary))  # 4: logits are float32
    return math.ceil(tokens / math.ceil(tokens / at_most))


def capped(logits: Array, softcap: float) -> Array:
    """Return logits within a soft bound; 0 for none.

    >>> [float(capped(jnp.float32(logit), 30.0)) for logit in (0.0, 1e6)]
    [0.0, 30.0]
    """
    return softcap * jnp.tanh(logits / softcap) if softcap else logits


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _cross_entropy(x: Array, rows: Array, targets: Array, chunk: int, softcap: float) -> Array:
    return _forward(x, rows, targets, chunk, softcap)[0]


def _forward(
    x: Array, rows: Array, targets: Array, chunk: int, softcap: float
) -> tuple[Array, _Residuals]:
    def add(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        lost, logsumexp, _ = _lost(part[0], rows, part[1], softcap)
        # The padding of the last chunk has targets, too: only real tokens count.
        return total + jnp.sum(jnp.where(part[2], lost, 0)), logsumexp

    if chunk == len(x):
        lost, logsumexp, logits = _lost(x, rows, targets, softcap)
        return jnp.sum(lost), _Residuals(x, rows, targets, logsumexp, logits)
    none = jnp.zeros((), accumulation_dtype(x.dtype))
    loss, logsumexp = jax.lax.scan(add, none, _chunks(chunk, x, targets))
    return loss, _Residuals(x, rows, targets, logsumexp, None)


def _forward_for(
    x: CustomVJPPrimal, rows: CustomVJPPrimal, targets: CustomVJPPrimal, chunk: int, softcap: float
) -> tuple[Array, _Residuals | _OfInput]:
    """Return the loss, and what the backward of the arguments that are differentiated needs."""
    if rows.perturbed:
        return _forward(x.value, rows.value, targets.value, chunk, softcap)
    return _forward_with_gradient(x.value, rows.value, targets.value, chunk, softcap)


def _forward_with_gradient(
    x: Array, rows: Array, targets: Array, chunk: int, softcap: float
) -> tuple[Array, _OfInput]:
    """Return the loss and its gradient of `x`, while the logits of a chunk are there.

    On a CPU, tokens that count come first, and chunks of tokens that do not are left out.
    """

    def add(total: Array, part: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        x, targets, is_token = part
        lost, logsumexp, logits = _lost(x, rows, targets, softcap)
        of_lost = (is_token & (targets != IGNORED)).astype(lost.dtype)
        of_logits = _of_logits(logits, logsumexp, targets, of_lost, softcap)
        return total + jnp.sum(jnp.where(is_token, lost, 0)), _of_x(rows, of_logits, x.dtype)

    none = jnp.zeros((), accumulation_dtype(x.dtype))
    # Elsewhere, the host would wait for the number of the chunks that count.
    if jax.default_backend() == "cpu":
        chunk = min(chunk, max(_LEAST_TOKENS, _LEAST_LOGITS // len(rows)))
        order = jnp.argsort(targets == IGNORED)  # stable
        num_counted = jnp.count_nonzero(targets != IGNORED)
        chunks = _chunks(chunk, x[order], targets[order])
        loss, of_x = _scan_first(-(-num_counted // chunk), add, none, chunks)
        of_x = of_x.reshape(-1, x.shape[1])[jnp.argsort(order)]
    else:
        loss, of_x = jax.lax.scan(add, none, _chunks(chunk, x, targets))
        of_x = of_x.reshape(-1, x.shape[1])[: len(x)]
    return loss, _OfInput(of_x.astype(x.dtype))


def _scan_first(
    num: Array, step: Callable[[Array, Any], tuple[Array, Array]], total: Array, parts: Any
) -> tuple[Array, Array]:
    """Return what `jax.lax.scan` does, with 0 as the outputs of all parts but the first `num`."""

    def advance(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        total, outputs = state
        total, output = step(total, jax.tree.map(lambda part: part[i], parts))
        return total, outputs.at[i].set(output)

    _, output = jax.eval_shape(step, total, jax.tree.map(lambda part: part[0], parts))
    outputs = jnp.zeros((len(jax.tree.leaves(parts)[0]), *output.shape), output.dtype)
    return jax.lax.fori_loop(0, num, advance, (total, outputs))


def _backward(
    chunk: int, softcap: float, residuals: _Residuals | _OfInput, of_loss: Array
) -> tuple[Array, Array | None, None]:
    if isinstance(residuals, _OfInput):
        return (of_loss * residuals.of_x).astype(residuals.of_x.dtype), None, None
    x, rows, targets, logsumexp, logits = residuals

    def add(of_rows: Array, part: tuple[tuple[Array, Array, Array], Array]) -> tuple[Array, Array]:
        (x, targets, is_token), logsumexp = part
        logits = _logits(x, rows, softcap)
        of_lost = jnp.where(is_token & (targets != IGNORED), of_loss, 0)
        of_logits = _of_logits(logits, logsumexp, targets, of_lost, softcap)
        return of_rows + _of_rows(x, of_logits), _of_x(rows, of_logits, x.dtype)

    if logits is not None:
        of_lost = jnp.where(targets == IGNORED, 0, of_loss)
        of_logits = _of_logits(logits, logsumexp, targets, of_lost, softcap)
        of_x, of_rows = _of_x(rows, of_logits, x.dtype), _of_rows(x, of_logits)
    else:
        # float32: the table's gradient is a sum over all chunks.
        zeros = jnp.zeros(rows.shape, accumulation_dtype(x.dtype))
        of_rows, of_x = jax.lax.scan(add, zeros, (_chunks(chunk, x, targets), logsumexp))
        of_x = of_x.reshape(-1, x.shape[1])[: len(x)]
    return of_x.astype(x.dtype), of_rows.astype(rows.dtype), None


_cross_entropy.defvjp(_forward_for, _backward, symbolic_zeros=True)


def _lost(x: Array, rows: Array, targets: Array, softcap: float) -> tuple[Array, Array, Array]:
    """Return -log p of each target, the logsumexp and the logits."""
    logits = _logits(x, rows, softcap)
    logsumexp = jax.nn.logsumexp(logits, axis=1)
    lost = logsumexp - jax.vmap(_chosen)(logits, targets)
    return jnp.where(targets == IGNORED, 0, lost), logsumexp, logits


def _chosen(logits: Array, target: Array) -> Array:
    # Unlike `jnp.take_along_axis`, which would count a negative target from the end.
    return logits.at[target].get(mode="fill", wrap_negative_indices=False)


def _logits(x: Array, rows: Array, softcap: float) -> Array:
    wide = accumulation_dtype(x.dtype)
    products = jnp.einsum("td,vd->tv", x, rows, preferred_element_type=wide)
    return capped(products, softcap)


def _of_logits(
    logits: Array, logsumexp: Array, targets: Array, of_lost: Array, softcap: float
) -> Array:
    """Return the gradient of the products, before their bound."""
    # A comparison, not a scatter: it is fused with the rest.
    is_target = targets[:, None] == jnp.arange(logits.shape[1])
    of_logits = (jnp.exp(logits - logsumexp[:, None]) - is_target) * of_lost[:, None]
    # The slope of c tanh(x / c) is 1 - tanh^2.
    return of_logits * (1 - (logits / softcap) ** 2) if softcap else of_logits


def _of_x(rows: Array, of_logits: Array, dtype: Any) -> Array:
    # In the format of the operands: a mixed product would be computed in float32.
    wide = accumulation_dtype(dtype)
    return jnp.einsum("tv,vd->td", of_logits.astype(dtype), rows, preferred_element_type=wide)


def _of_rows(x: Array, of_logits: Array) -> Array:
    wide = accumulation_dtype(x.dtype)
    return jnp.einsum("tv,td->vd", of_logits.astype(x.dtype), x, preferred_element_type=wide)


def _chunks(chunk: int, x: Array, targets: Array) -> tuple[Array, Array, Array]:
    """Split into equal chunks, the last one padded; return the mask of real tokens as well."""
    tokens = len(x)
    num_chunks = math.ceil(tokens / chunk)
    filling = num_chunks * chunk - tokens
    is_token = jnp.arange(num_chunks * chunk) < tokens
    return (
        jnp.pad(x, ((0, filling), (0, 0))).reshape(num_chunks, chunk, -1),
        jnp.pad(targets, (0, filling)).reshape(num_chunks, chunk),
        is_token.reshape(num_chunks, chunk),
    )
