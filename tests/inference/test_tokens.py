"""Batches of texts: the tokens of each are its own, with a cache and without."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import jax
import numpy as np
import pytest

from jaxpipe.inference import tokens
from jaxpipe.inference.sample_texts import Continuation
from jaxpipe.inference.sampling import Sampling
from jaxpipe.inference.tokens import generated
from jaxpipe.models.llama import Llama
from jaxpipe.runtime.data import Bytes
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles import numpy_llama
from tests.oracles import whole_model as uncut
from tests.oracles.llamas import SHORT
from tests.oracles.one_device import NUM_LAYERS, SEED, SEQUENCE, tiny_gpt

pytestmark = pytest.mark.slow

PROMPTS = [np.array(each, np.int32) for each in ([3, 1, 4], [2], [7, 1, 8, 2])]
NUM_TOKENS = SEQUENCE - 3
MODEL = tiny_gpt(tied=True)


@cache
def params() -> Parameters:
    whole = Stage(model=MODEL, index=0, num_stages=1, layers=range(NUM_LAYERS))
    return jax.jit(lambda: jax.tree.map(lambda leaf: 4 * leaf, whole.init(seed=SEED)))()


@cache
def drawn(sampling: Sampling, *, cached: bool, only: int | None = None) -> list[list[int]]:
    """Return the tokens of each text."""
    prompts = PROMPTS if only is None else PROMPTS[only : only + 1]
    with patch.object(tokens, "can_decode", lambda _: cached):
        steps = list(generated(MODEL, params(), prompts, num_tokens=NUM_TOKENS, sampling=sampling))
    return [list(each) for each in zip(*steps, strict=True)]


def test_a_cache_changes_no_token() -> None:
    greedy = Sampling(temperature=0.0)
    with_cache = drawn(greedy, cached=True)
    assert with_cache == drawn(greedy, cached=False)
    assert [len(each) for each in with_cache] == [NUM_TOKENS] * 3


def test_a_text_of_a_batch_is_that_of_its_own_seed() -> None:
    of_batch = drawn(Sampling(temperature=1.0, top_p=0.9, seed=3), cached=True)
    alone = drawn(Sampling(temperature=1.0, top_p=0.9, seed=5), cached=True, only=2)
    assert alone == of_batch[2:]


def test_with_a_window_the_last_tokens_alone_are_seen() -> None:
    greedy = Sampling(temperature=0.0)
    steps = generated(MODEL, params(), PROMPTS[2:], num_tokens=5, sampling=greedy, window=2)
    text = PROMPTS[2].tolist()
    for (token,) in steps:
        alone = [np.array(text[-2:], np.int32)]
        (expected,) = generated(MODEL, params(), alone, num_tokens=1, sampling=greedy)
        assert (token,) == expected
        text.append(token)


def test_no_tokens_and_one() -> None:
    for number in (0, 1):
        steps = generated(
            MODEL, params(), PROMPTS[:1], num_tokens=number, sampling=Sampling(temperature=0.0)
        )
        assert len(list(steps)) == number


def test_a_text_that_outgrows_the_sequence_of_pretraining_is_computed_anew() -> None:
    config = replace(SHORT, num_layers=1, rope_sequence=5)
    llama = Llama(config)
    params = uncut.disturbed(llama)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    greedy = Sampling(temperature=0.0)
    # They outgrow it after 3, 5 and 2 tokens, and one from the beginning.
    prompts = [*PROMPTS, np.arange(6, dtype=np.int32)]
    expected = []
    for prompt in prompts:
        text = prompt.tolist()
        for _ in range(6):
            text.append(int(numpy_llama.logits(config, wide, np.array([text]))[0, -1].argmax()))
        expected.append(text[len(prompt) :])
    for cached in (True, False):
        with patch.object(tokens, "can_decode", lambda _, cached=cached: cached):
            steps = list(generated(llama, params, prompts, num_tokens=6, sampling=greedy))
        assert [list(text) for text in zip(*steps, strict=True)] == expected


def shown(text: bytes, *stops: str) -> tuple[list[str], str, bool]:
    continuation = Continuation(Bytes(), stops)
    parts = [continuation.add(token) for token in text]
    return [*parts, continuation.rest()], continuation.shown, continuation.is_stopped


def test_only_whole_characters_are_shown() -> None:
    assert shown("aé€".encode()) == (["a", "", "é", "", "", "€", ""], "aé€", False)
    assert shown(b"a\xc3") == (["a", "", "\ufffd"], "a\ufffd", False)


def test_a_text_ends_before_the_first_stop_string() -> None:
    assert shown(b"one\ntwo", "\n") == (["o", "n", "e", "", "", "", "", ""], "one", True)
    assert shown(b"a<b</s>", "</s>", "zz") == (["a", "", "<b", "", "", "", "", ""], "a<b", True)
    # What is held back for a stop string that does not come is shown at the end.
    assert shown(b"ab<", "</s>") == (["a", "b", "", "<"], "ab<", False)
