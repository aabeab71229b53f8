"""Sample text from a model whose parameters are all on one device."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxpipe.runtime.stage.model import Model, Parameters
from jaxpipe.runtime.stage.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn: temperature 0 takes the most likely; `top_k` limits the choices."""

    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < inf:  # NaN compares as false
            raise ValueError(
                f"`temperature` must be a finite number of at least 0, not {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"`top_k` must be at least 1, is {self.top_k}")


def continuation(
    model: Model,
    params: Parameters,
    prompt: Int[np.ndarray, " tokens"],
    *,
    num_tokens: int,
    sampling: Sampling,
) -> Iterator[int]:
    """Yield the tokens that continue the prompt, one by one.

    The model sees the last `model.sequence` tokens, and computes all of them for each new token, at
    one shape: it compiles once, but caches no keys and values.
    """
    stage = Stage(model=model, index=0, num_stages=1, layers=range(model.num_layers))
    next_token = jax.jit(partial(_next_token, stage, sampling))
    text = list(map(int, prompt))
    for number in range(num_tokens):
        seen = text[-model.sequence :]
        # Padding comes last: attention is causal, so it does not reach the position that is read.
        window = np.zeros((1, model.sequence), np.int32)
        window[0, : len(seen)] = seen
        token = int(next_token(params, window, np.int32(len(seen) - 1), np.int32(number)))
        text.append(token)
        yield token


def _next_token(
    stage: Stage,
    sampling: Sampling,
    params: Parameters,
    window: Int[Array, "1 seq"],
    last: Int[Array, ""],
    number: Int[Array, ""],
) -> Int[Array, ""]:
    logits = stage.logits(params, window)[0, last]
    if sampling.temperature == 0:  # the limit of the softmax below, which divides by it
        return jnp.argmax(logits)
    key = jax.random.fold_in(jax.random.key(sampling.seed), number)
    return jax.random.categorical(key, _likeliest(logits, sampling.top_k) / sampling.temperature)


def _likeliest(logits: Float[Array, " vocabulary"], top_k: int | None) -> Float[Array, "..."]:
    if top_k is None or top_k >= logits.size:
        return logits
    threshold = jax.lax.top_k(logits, top_k)[0][-1]
    return jnp.where(logits >= threshold, logits, -jnp.inf)
