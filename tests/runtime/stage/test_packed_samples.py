"""Packed documents: their loss and gradients are the sums of those of each document alone."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from docs.examples.own_model import Decays
from jaxpipe.finetune import LoraConfig
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.llama import Llama
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.data.order.packing import packed_rows
from jaxpipe.runtime.data.order.samples import IGNORED, Samples
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.placed import SampleParts, can_place
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles.llamas import GEMMA, SHORT

pytestmark = pytest.mark.slow

NUM_LAYERS, SEQUENCE, VOCABULARY = 3, 16, 19
GPT = Gpt(
    GptConfig(num_layers=NUM_LAYERS, dim=16, num_heads=2, sequence=SEQUENCE, vocabulary=VOCABULARY)
)
MODELS: dict[str, Model] = {
    "gpt": GPT,
    "gemma2": Llama(replace(GEMMA, num_layers=NUM_LAYERS, sequence=SEQUENCE)),
    "adapters": tuned(GPT, lora=LoraConfig(rank=2), frozen=()),
}
LENGTHS = (5, 3, 12, 2, 9, 17)
TOLERANCE = 2e-5


def documents() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(1, VOCABULARY, length) for length in LENGTHS]


def packed() -> Samples:
    """Return all documents in as few rows as they fit."""
    rows = packed_rows(
        np.concatenate(documents()).astype(np.uint8), np.cumsum(LENGTHS), sequence=SEQUENCE
    )
    assert rows.num_samples < len(LENGTHS)
    return rows.read(np.arange(rows.num_samples))


def alone() -> Samples:
    """Return each document in a row of its own, which is filled up."""
    inputs = np.zeros((len(LENGTHS), SEQUENCE), np.int32)
    targets = np.full_like(inputs, IGNORED)
    for row, tokens in enumerate(documents()):
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        targets[row, : len(tokens) - 1] = tokens[1:]
    return Samples(rows=inputs, labels=targets)


@cache
def value_and_gradients(
    name: str, cut: tuple[int, ...] = (NUM_LAYERS,), *, together: bool = True
) -> tuple[float, Any]:
    """Return the loss of the stages one after the other, and its gradients by stage."""
    model, samples = MODELS[name], packed() if together else alone()
    edges = np.cumsum([0, *cut]).tolist()
    stages = [
        Stage(
            model=model,
            index=index,
            num_stages=len(cut),
            layers=range(edges[index], edges[index + 1]),
            loop=Loop.SCAN,
        )
        for index in range(len(cut))
    ]

    def loss(params: list[Any]) -> jax.Array:
        x: Any = samples.inputs
        for stage, own in zip(stages, params, strict=True):
            targets: Any = samples.targets if stage.is_last else None
            if samples.segments is not None:
                targets = SampleParts(segments=samples.segments, targets=targets)
            x = stage.apply(own, x, targets, None)
        return x

    value, gradients = jax.jit(jax.value_and_grad(loss))([s.init(seed=3) for s in stages])
    return float(value), gradients


@pytest.mark.parametrize("name", MODELS)
def test_packed_documents_do_not_see_each_other(name: str) -> None:
    found, gradients = value_and_gradients(name)
    loss, expected = value_and_gradients(name, together=False)
    assert found == pytest.approx(loss, rel=TOLERANCE)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=TOLERANCE * np.abs(b).max()),
        gradients,
        expected,
    )


def test_a_packed_document_is_as_long_as_itself() -> None:
    model = Llama(replace(SHORT, num_layers=1, sequence=SEQUENCE))
    stage = Stage(model=model, index=0, num_stages=1, layers=range(1), loop=Loop.SCAN)
    params, samples = stage.init(seed=3), packed()
    assert min(LENGTHS) - 1 < model.switch_length < max(LENGTHS) - 1
    parts: Any = SampleParts(segments=samples.segments, targets=samples.targets)
    together: Any = stage.apply(params, samples.inputs, parts, None)
    alone: list[Any] = [
        stage.apply(params, tokens[None, :-1], tokens[None, 1:], None)
        for tokens in (tokens.astype(np.int32) for tokens in documents())
    ]
    np.testing.assert_allclose(together, sum(alone), rtol=TOLERANCE)


def test_stages_of_a_cut_have_the_gradients_of_one() -> None:
    found, cut = value_and_gradients("gpt", (1, 2))
    loss, (whole,) = value_and_gradients("gpt")
    assert found == pytest.approx(loss, rel=TOLERANCE)
    blocks = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(each["blocks"] for each in cut))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=TOLERANCE * np.abs(b).max()),
        blocks,
        whole["blocks"],
    )


def test_a_model_without_placed_layers_cannot_pack() -> None:
    own = Decays(num_layers=2, vocabulary=19, dim=16)
    assert [can_place(model) for model in (GPT, MODELS["adapters"], own)] == [True, True, False]
