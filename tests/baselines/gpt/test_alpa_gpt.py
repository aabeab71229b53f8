"""Alpa's GPT is a model like the other, of the published sizes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.baselines.gpt.alpa_gpt import AlpaGpt, num_parameters
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.runtime.stage.model import Model

pytestmark = pytest.mark.slow

_CONFIG = GptConfig(num_layers=2, dim=8, num_heads=2, sequence=6, vocabulary=11, tied=False)


def test_it_is_a_model() -> None:
    assert isinstance(AlpaGpt(_CONFIG), Model)


def test_fields_that_it_cannot_have() -> None:
    with pytest.raises(ValueError, match="`tied` must be false"):
        AlpaGpt(replace(_CONFIG, tied=True))
    with pytest.raises(ValueError, match=r"`dropout` must be 0, not 0\.1"):
        AlpaGpt(replace(_CONFIG, dropout=0.1))


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("125m", 0.16),
        ("350m", 0.41),
        ("760m", 0.84),
        ("1.3b", 1.42),
        ("2.6b", 2.78),
        ("6.7b", 6.87),
    ],
)
def test_sizes(name: str, billions: float) -> None:
    config = GptConfig(**load_preset(f"alpa-{name}"))
    assert num_parameters(config) / 1e9 == pytest.approx(billions, abs=0.01)


def test_cut_or_whole_the_parameters_are_the_same() -> None:
    gpt, key = AlpaGpt(_CONFIG), jax.random.key(0)
    whole = gpt.init(key, layers=range(2), embed=True, head=True)
    part = gpt.init(key, layers=range(1, 2), embed=False, head=True)
    for name in ("blocks", "head"):
        last = (
            jax.tree.map(lambda leaf: leaf[-1:], whole[name]) if name == "blocks" else whole[name]
        )
        jax.tree.map(np.testing.assert_array_equal, last, part[name])
    assert "embed" not in part


def test_the_future_does_not_matter_and_neither_do_negative_targets() -> None:
    gpt = AlpaGpt(_CONFIG)
    params = gpt.init(jax.random.key(1), layers=range(2), embed=True, head=True)
    tokens = jnp.arange(6)[None] % _CONFIG.vocabulary
    logits = _logits(gpt, params, tokens)
    changed = _logits(gpt, params, tokens.at[0, 4].set(9))
    np.testing.assert_array_equal(logits[:, :4], changed[:, :4])
    assert np.any(logits[:, 4:] != changed[:, 4:])
    targets = jnp.array([[3, -1, 0, -1, 5, -1]])
    lost = -jax.nn.log_softmax(logits)[0, jnp.arange(0, 6, 2), jnp.array([3, 0, 5])]
    np.testing.assert_allclose(
        gpt.loss(params, _hidden(gpt, params, tokens), targets), lost.sum(), rtol=1e-6
    )


def _hidden(gpt: AlpaGpt, params: dict, tokens: jax.Array) -> jax.Array:
    x = gpt.embed(params, tokens, None)
    for layer in range(gpt.num_layers):
        x = gpt.block(jax.tree.map(lambda leaf, n=layer: leaf[n], params["blocks"]), x, None)
    return x


def _logits(gpt: AlpaGpt, params: dict, tokens: jax.Array) -> jax.Array:
    return gpt.head(params, _hidden(gpt, params, tokens))
