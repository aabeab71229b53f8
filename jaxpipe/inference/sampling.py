"""Draw tokens from the logits of a model, and sample text from any model on one device."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpipe.models.decoder import padded_limit
from jaxpipe.runtime.stage.model import Model, Parameters
from jaxpipe.runtime.stage.stage import Stage

_COLDEST = 1e-30
"""Below it, the difference of two logits in float32 decides as at temperature 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn: temperature 0 takes the most likely; others limit the choices.

    `top_k` keeps the k most likely tokens; `top_p` then keeps the fewest that together have this
    probability (nucleus sampling). The text number n of a batch is drawn with the seed `seed` + n.

    Source of `top_p`: Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration",
    section 3.1.
    """

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < inf:  # NaN compares as false
            raise ValueError(
                f"`temperature` must be a finite number of at least 0, not {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"`top_k` must be at least 1, is {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must be above 0 and at most 1, is {self.top_p}")


def draw(
    sampling: Sampling,
    logits: Float[Array, " vocabulary"],
    *,
    number: Int[Array, ""] | int,
    row: Int[Array, ""] | int = 0,
) -> Int[Array, ""]:
    """Return the token `number` that is added to the text `row` of a batch."""
    # The limit of the softmax below, which divides by it; by less, float32 overflows.
    if sampling.temperature < _COLDEST:
        return jnp.argmax(logits)
    key = jax.random.fold_in(jax.random.key(sampling.seed + row), number)
    scaled = likeliest(logits, sampling.top_k) / sampling.temperature
    return jax.random.categorical(key, nucleus(scaled, sampling.top_p))


def likeliest(
    logits: Float[Array, " vocabulary"], top_k: int | None
) -> Float[Array, " vocabulary"]:
    """Return the k largest logits; others are minus infinity."""
    if top_k is None or top_k >= logits.size:
        return logits
    threshold = jax.lax.top_k(logits, top_k)[0][-1]
    return jnp.where(logits >= threshold, logits, -jnp.inf)


def nucleus(
    logits: Float[Array, " vocabulary"], top_p: float | None
) -> Float[Array, " vocabulary"]:
    """Return the largest logits whose probabilities sum to `top_p`; others are minus infinity.

    >>> nucleus(jnp.array([1.0, 3.0, 2.0]), 0.8).tolist()
    [-inf, 3.0, 2.0]
    """
    if top_p is None or top_p == 1:
        return logits
    ordered = jnp.sort(logits, descending=True)
    probabilities = jax.nn.softmax(ordered)
    before = jnp.cumsum(probabilities) - probabilities
    # The first is always kept: nothing is before it.
    threshold = ordered[jnp.sum(before < top_p) - 1]
    return jnp.where(logits >= threshold, logits, -jnp.inf)


def continuation(
    model: Model,
    params: Parameters,
    prompt: Int[np.ndarray, " tokens"],
    *,
    num_tokens: int,
    sampling: Sampling,
    row: int = 0,
    window: int | None = None,
) -> Iterator[int]:
    """Yield the tokens that continue the prompt, one by one.

    The model sees the last tokens, at most `window` and by default `model.sequence`, and computes
    all of them for each new token, at one shape (two if the text outgrows `switch_length`): it
    compiles once for each, but caches no keys and values.
    `tokens.generated` does, for the models whose layers it knows.
    """
    num_seen = model.sequence if window is None else min(window, model.sequence)
    stage = Stage(model=model, index=0, num_stages=1, layers=range(model.num_layers))
    next_token = jax.jit(partial(_next_token, stage, sampling))
    text = list(map(int, prompt))
    for number in range(num_tokens):
        seen = text[-num_seen:]
        # Padding comes last: attention is causal, so it does not reach the position that is read.
        padded = np.zeros((1, padded_limit(model, len(seen), most=num_seen)), np.int32)
        padded[0, : len(seen)] = seen
        position = np.array([len(seen) - 1, number, row], np.int32)
        token = int(next_token(params, padded, position))
        text.append(token)
        yield token


def _next_token(
    stage: Stage,
    sampling: Sampling,
    params: Parameters,
    window: Int[Array, "1 seq"],
    position: Int[Array, "3"],
) -> Int[Array, ""]:
    last, number, row = position
    return draw(sampling, stage.logits(params, window)[0, last], number=number, row=row)
