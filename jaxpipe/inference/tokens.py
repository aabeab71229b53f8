"""The tokens that continue a batch of prompts, one step after the other.

Two programs are compiled: one for the prompts, one for a token more. Both have the shapes of the
longest prompt and of the number of tokens, and none is compiled while tokens are drawn. Where the
layers compute another text as soon as it has some length (LongRoPE), a third one computes the whole
text again at that length.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxpipe.inference.sampling import Sampling, continuation, draw
from jaxpipe.models.decoder import Decoder, Logits, can_decode, switch_length
from jaxpipe.models.kernels.cached_attention import Cache
from jaxpipe.runtime.stage.model import Model, Parameters

Tokens = tuple[int, ...]


def generated(
    model: Model,
    params: Parameters,
    prompts: Sequence[Int[np.ndarray, " tokens"]],
    *,
    num_tokens: int,
    sampling: Sampling,
    width: int = 0,
    window: int | None = None,
) -> Iterator[Tokens]:
    """Yield the next token of each text, `num_tokens` times; no prompt may be empty.

    Prompts are padded to `width` at least, so that several batches share the programs of one width.

    The model sees the last `window` tokens, by default as many as its sequence has. Keys and values
    are cached if the texts fit there and its layers can (`can_decode`); otherwise each token
    computes the last tokens of its text again. A text depends neither on the others of its batch,
    but for rounding, nor on the cache.
    """
    num_seen = model.sequence if window is None else min(window, model.sequence)
    width = max(width, *map(len, prompts))
    room = width + num_tokens - 1
    if num_tokens and can_decode(model) and room <= num_seen:
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        padded = np.zeros((len(prompts), width), np.int32)
        for row, prompt in zip(padded, prompts, strict=True):
            row[: len(prompt)] = prompt
        decoder = Decoder(model, room)
        yield from _cached(decoder, params, (padded, lengths), num_tokens, sampling)
        return
    again = (
        continuation(
            model,
            params,
            prompt,
            num_tokens=num_tokens,
            sampling=sampling,
            row=row,
            window=num_seen,
        )
        for row, prompt in enumerate(prompts)
    )
    yield from zip(*again, strict=True)


def _cached(
    decoder: Decoder,
    params: Parameters,
    prompts: tuple[Int[np.ndarray, "batch seq"], Int[np.ndarray, " batch"]],
    num_tokens: int,
    sampling: Sampling,
) -> Iterator[Tokens]:
    padded, lengths = prompts
    tokens, cache = _first(decoder, sampling, params, padded, lengths, np.int32(0))
    yield tuple(tokens.tolist())
    texts = np.zeros((len(lengths), decoder.room), np.int32)
    texts[:, : padded.shape[1]] = padded
    switch = switch_length(decoder.model)
    for number in range(1, num_tokens):
        places = lengths, np.int32(number)
        texts[np.arange(len(texts)), lengths + number - 1] = tokens
        if switch and np.any(lengths + number == switch + 1):
            longer = lengths + number
            tokens, cache = _first(decoder, sampling, params, texts, longer, places[1])
        else:
            tokens, cache = _next(decoder, sampling, params, tokens, cache, *places)
        yield tuple(tokens.tolist())


@partial(jax.jit, static_argnums=(0, 1))
def _first(
    decoder: Decoder,
    sampling: Sampling,
    params: Parameters,
    prompts: Array,
    lengths: Array,
    number: Array,
) -> tuple[Array, Cache]:
    logits, cache = decoder.prefill(params, prompts, lengths)
    return _drawn(sampling, logits, number), cache


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(4,))
def _next(
    decoder: Decoder,
    sampling: Sampling,
    params: Parameters,
    tokens: Array,
    cache: Cache,
    lengths: Array,
    number: Array,
) -> tuple[Array, Cache]:
    logits, cache = decoder.step(params, tokens, lengths + number - 1, cache)
    return _drawn(sampling, logits, number), cache


def _drawn(sampling: Sampling, logits: Logits, number: Array) -> Array:
    def of_row(logits: Array, row: Array) -> Array:
        return draw(sampling, logits, number=number, row=row)

    return jax.vmap(of_row)(logits, jnp.arange(len(logits))).astype(jnp.int32)
