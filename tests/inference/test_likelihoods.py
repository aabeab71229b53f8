"""The likelihood of a continuation is that of its text alone, whatever its batch is padded to."""

import jax
import numpy as np
import pytest

from jaxpipe.inference.likelihoods import Continued, likelihoods
from jaxpipe.models.llama import Llama
from tests.oracles import numpy_llama
from tests.oracles import whole_model as uncut
from tests.oracles.llamas import SHORT

pytestmark = pytest.mark.slow


def test_short_texts_are_not_padded_to_long_ones() -> None:
    llama = Llama(SHORT)
    params = uncut.disturbed(llama)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    tokens = np.arange(1, 13)
    # Of 10 to 12 tokens the last is compared alone: 9 and more are read.
    texts = [Continued(tokens[:length].tolist(), [3, 4]) for length in (2, 5, 8, 9, 10)]
    answers = dict(likelihoods(llama, params, texts))
    assert len(answers) == len(texts)
    for number, text in enumerate(texts):
        whole = np.array([*text.context, *text.continuation])
        logits = numpy_llama.logits(SHORT, wide, whole[None, :-1])[0, -2:]
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        expected = logs[[0, 1], whole[-2:]].sum()
        assert answers[number].log_probability == pytest.approx(expected, abs=1e-4)
