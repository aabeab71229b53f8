"""Encoders: attention to all positions, embedded pictures, labels at the first position."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from tests.oracles import whole_model as uncut

TEXT = GptConfig(
    num_layers=2,
    dim=12,
    num_heads=3,
    sequence=5,
    vocabulary=17,
    tied=False,
    causal=False,
    classes=4,
)
PICTURES = replace(TEXT, patch=3, channels=2, vocabulary=256)


def test_labels_are_read_at_the_first_position() -> None:
    gpt = Gpt(TEXT)
    params, tokens = uncut.disturbed(gpt), uncut.random_tokens(gpt, 3, 5)
    logits = uncut.logits(gpt, params, tokens)
    assert logits.shape == (3, 4)
    labels = jnp.array([0, 3, 1], jnp.int32)
    expected = -jax.nn.log_softmax(logits)[jnp.arange(3), labels].sum()
    assert float(uncut.loss(gpt, params, tokens, labels)) == pytest.approx(float(expected))


@pytest.mark.parametrize("causal", [False, True])
def test_the_first_position_sees_the_last_unless_attention_is_causal(causal: bool) -> None:
    gpt = Gpt(replace(TEXT, causal=causal))
    params, tokens = uncut.disturbed(gpt), uncut.random_tokens(gpt, 1, 5)
    other = tokens.at[0, -1].set((tokens[0, -1] + 1) % 17)
    change = jnp.abs(uncut.logits(gpt, params, tokens) - uncut.logits(gpt, params, other)).max()
    assert (float(change) == 0) is causal


def test_patches_are_projected_row_by_row() -> None:
    gpt = Gpt(PICTURES)
    assert PICTURES.picture == (6, 6, 2)
    params = uncut.disturbed(gpt)
    pictures = np.random.default_rng(0).integers(0, 256, (2, 6, 6, 2)).astype(np.uint8)
    found = gpt.embed(params, jnp.asarray(pictures), None)
    part = {name: np.asarray(leaf, np.float64) for name, leaf in params["embed"].items()}
    for number, picture in enumerate(pictures / 255 * 2 - 1):
        patches = [picture[r : r + 3, c : c + 3] for r in (0, 3) for c in (0, 3)]
        rows = [part["start"][0], *(p.ravel() @ part["kernel"] + part["bias"] for p in patches)]
        np.testing.assert_allclose(found[number], np.stack(rows) + part["positions"], rtol=1e-4)


def test_pictures_of_another_shape_are_refused() -> None:
    gpt = Gpt(PICTURES)
    with pytest.raises(ValueError, match=r"give pictures of shape \(6, 6, 2\), not \(6, 6, 3\)"):
        gpt.embed(uncut.init(gpt), jnp.zeros((1, 6, 6, 3), jnp.uint8), None)


@pytest.mark.parametrize("labels", [True, False])
def test_what_a_pair_adds_to_the_loss_is_in_the_units_of_the_loss(labels: bool) -> None:
    config = replace(TEXT, experts=3, z_loss=1.0, classes=4 * labels, causal=not labels)
    gpt = Gpt(config)
    params = uncut.init(gpt)
    layer = jax.tree.map(lambda leaf: 0 * leaf[0], params["blocks"])
    # Logits of zero: their logsumexp is log 3, in every token.
    output = gpt.block(layer, jnp.ones((2, 5, 12)), None)
    assert isinstance(output, tuple)
    num_targets = 2 if labels else 10
    assert float(output[1]) == pytest.approx(num_targets * math.log(3) ** 2, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tied": True}, "`tied` must be false where the head has `classes`, 4"),
        ({"classes": 0}, "`causal` must be true where the targets are the next tokens"),
        (
            {"patch": 3, "classes": 0, "causal": True},
            "`classes` must be at least 1 where inputs are pictures",
        ),
        ({"patch": 3, "sequence": 9}, r"1 more than the patches .* not 9; for example 5"),
        ({"classes": -1}, "`classes` must be at least 0, not -1"),
        ({"experts": 2, "experts_per_token": 3}, "at most `experts`, 2, not 3"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TEXT, **changes)
