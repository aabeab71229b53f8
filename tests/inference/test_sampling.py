"""Sampling continues a prompt with what the model finds likely."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.inference.sampling import Sampling, continuation
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles.one_device import NUM_LAYERS, SEED, SEQUENCE, tiny_gpt

pytestmark = pytest.mark.slow

PROMPT = np.array([3, 1, 4], np.int32)


@cache
def drawn() -> Parameters:
    whole = Stage(model=tiny_gpt(tied=True), index=0, num_stages=1, layers=range(NUM_LAYERS))
    return jax.jit(lambda: whole.init(seed=SEED))()


def words(num_tokens: int, sampling: Sampling) -> list[int]:
    model = tiny_gpt(tied=True)
    return list(continuation(model, drawn(), PROMPT, num_tokens=num_tokens, sampling=sampling))


def test_temperature_zero_takes_the_likeliest_token_beyond_the_longest_sequence():
    model = tiny_gpt(tied=True)
    params = drawn()
    whole = Stage(model=model, index=0, num_stages=1, layers=range(NUM_LAYERS))
    text = PROMPT.tolist()
    for _ in range(2 * SEQUENCE):
        seen = jnp.array([text[-SEQUENCE:]], jnp.int32)
        text.append(int(whole.logits(params, seen)[0, -1].argmax()))
    assert words(2 * SEQUENCE, Sampling(temperature=0.0)) == text[len(PROMPT) :]


def test_seeds_and_top_k():
    assert words(20, Sampling(seed=1)) == words(20, Sampling(seed=1))
    assert words(20, Sampling(seed=1)) != words(20, Sampling(seed=2))
    assert words(8, Sampling(top_k=1)) == words(8, Sampling(temperature=0.0))
    assert words(0, Sampling()) == []


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-30])
def test_low_temperatures_are_near_0(temperature: float):
    assert words(8, Sampling(temperature=temperature)) == words(8, Sampling(temperature=0.0))


def test_bad_sampling_is_refused():
    for temperature in (-1.0, math.nan, math.inf):
        words = f"`temperature` must be a finite number of at least 0, not {temperature}"
        with pytest.raises(ValueError, match=words):
            Sampling(temperature=temperature)
    with pytest.raises(ValueError, match="`top_k` must be at least 1, is 0"):
        Sampling(top_k=0)
