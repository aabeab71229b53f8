"""Adapters of every model of the catalogue: losses and gradients of cuts equal one device's."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.errors import ConfigError
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.finetune.merge import merged_tensors
from jaxpipe.finetune.tuned_model import adaptable, tuned
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.model import Model, Tuned
from jaxpipe.runtime.stage.stage import Stage
from tests.models.test_conformance import (
    MODELS,
    NUM_LAYERS,
    SAMPLES,
    SEED,
    SEQUENCE,
    TOLERANCE,
    by_name,
    fresh,
    of_pipeline,
)

pytestmark = pytest.mark.slow

LORA = LoraConfig(rank=2, alpha=3.0, targets=("*",))
NAMES = ("gpt", "mixtral", "own")
"""One has kernels of three dims, one experts, one none by that name; all of `MODELS` take minutes
more."""
every_model = pytest.mark.parametrize("name", NAMES)
CUT = (1, 3)


def adapted(name: str) -> Model:
    return tuned(MODELS[name], lora=LORA, frozen=())


def with_both_factors(stage: Stage) -> dict[str, Any]:
    """Return fresh parameters with a B that is not zero: no factor has a gradient of zero then."""

    def filled(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        if not path[-1].key.endswith(LORA_B):
            return leaf
        layers = jnp.asarray(stage.layers).reshape(-1, *(1,) * (leaf.ndim - 1))
        return 0.1 * jnp.cos(jnp.arange(leaf[0].size).reshape(leaf.shape[1:]) + layers)

    return jax.tree.map_with_path(filled, fresh(stage))


def whole(model: Model) -> Stage:
    return Stage(model=model, index=0, num_stages=1, layers=range(NUM_LAYERS), loop=Loop.SCAN)


def of_one_device(name: str, tokens: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
    """Return the loss and its gradients by JAX alone, of the model without adapters."""
    base, params = whole(MODELS[name]), with_both_factors(whole(adapted(name)))

    def merged(tree: dict[str, Any], factors: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for key, value in tree.items():
            if isinstance(value, dict):
                found[key] = merged(value, factors[key])
            elif key + LORA_A in factors:
                a, b = factors[key + LORA_A], factors[key + LORA_B]
                one = jnp.matmul if a.ndim == 4 else partial(jnp.tensordot, axes=1)  # of experts
                layers = [np.float32(1.5) * one(*ab) for ab in zip(a, b, strict=True)]
                found[key] = value + jnp.stack(layers)
            elif not key.endswith((LORA_A, LORA_B)):
                found[key] = value
        return found

    def loss(blocks: dict[str, Any]) -> jax.Array:
        merged_blocks = merged(params["blocks"], blocks)
        total = base.apply({**params, "blocks": merged_blocks}, tokens[:, :-1], tokens[:, 1:], None)
        assert not isinstance(total, tuple)
        return total / (SAMPLES * SEQUENCE)

    return jax.value_and_grad(loss)(params["blocks"])


@cache
def results(name: str) -> tuple[Any, ...]:
    """Return what one device and a cut compute, without and with adapters: compiled at once."""
    vocabulary = MODELS[name].vocabulary
    tokens = np.random.default_rng(0).integers(0, vocabulary, (SAMPLES, SEQUENCE + 1))

    @jax.jit
    def compute(tokens: jax.Array) -> Any:
        model, base = adapted(name), whole(MODELS[name])
        of_cut = of_pipeline(model, CUT, tokens[:, :-1], tokens[:, 1:], with_both_factors)
        params = with_both_factors(whole(model))
        assert isinstance(model, Tuned)
        # What the first step of a run computes: with a B of zero.
        at_first = model.merged(fresh(whole(model)))
        total, first = (
            each.evaluate(trees, tokens[:, :-1], tokens[:, 1:])
            for each, trees in ((base, fresh(base)), (whole(model), at_first))
        )
        return of_one_device(name, tokens), of_cut, (total, first), (params, model.merged(params))

    return compute(jnp.asarray(tokens, jnp.int32))


@every_model
def test_a_cut_has_the_loss_and_gradients_of_one_device(name: str) -> None:
    (loss, gradients), (found_loss, found), *_ = results(name)
    every = flatten({"blocks": gradients}, first_layer=0)
    expected = {key: value for key, value in every.items() if key.endswith((LORA_A, LORA_B))}
    assert len(expected) == 2 * NUM_LAYERS * len(adaptable(MODELS[name]))
    np.testing.assert_allclose(found_loss, loss, rtol=TOLERANCE)
    actual = by_name(found, CUT)
    assert actual.keys() == expected.keys()  # nothing else has a gradient
    for tensor, value in expected.items():
        assert np.any(value), tensor
        error = np.linalg.norm(actual[tensor] - value)
        assert error <= TOLERANCE * np.linalg.norm(value), tensor


@every_model
def test_fresh_adapters_change_no_bit_of_the_loss(name: str) -> None:
    *_, (total, first), _ = results(name)
    assert first == total


@every_model
def test_merged_tensors_are_the_parameters_that_layers_read(name: str) -> None:
    *_, (params, merged) = results(name)
    tensors, expected = flatten(params, first_layer=0), flatten(merged, first_layer=0)
    names = [each for each in tensors if not each.endswith((LORA_A, LORA_B))]
    read = merged_tensors(lambda wanted: {n: tensors[n] for n in wanted}, tensors.keys(), LORA)
    for tensor, value in read(names).items():
        np.testing.assert_allclose(value, expected[tensor], rtol=1e-6, atol=1e-7, err_msg=tensor)


def test_fresh_adapters_are_those_of_any_cut() -> None:
    model, key = adapted("own"), jax.random.key(SEED)
    first, second = (
        flatten(model.init(key, layers=each, embed=False, head=False), first_layer=each.start)
        for each in (range(3), range(2, 3))
    )
    assert second
    for tensor, value in second.items():
        np.testing.assert_array_equal(value, first[tensor])


def test_patterns_that_match_nothing_are_refused() -> None:
    words = "`lora.targets` has 'q_proj', which matches no product of the layers; choose from a"
    with pytest.raises(ConfigError, match=words):
        tuned(MODELS["llama"], lora=LoraConfig(rank=1, targets=("q_proj",)), frozen=())
    words = r"`train.frozen` has 'blocks\.4\..', which matches no parameter"
    with pytest.raises(ConfigError, match=words):
        tuned(MODELS["llama"], lora=LoraConfig(), frozen=("embed.*", "blocks.4.*"))
    with pytest.raises(ConfigError, match="matches every parameter"):
        tuned(MODELS["llama"], lora=LoraConfig(), frozen=("embed.*", "blocks.*", "head.*"))


def test_experts_and_routers_may_have_adapters() -> None:
    names = [name for name in adaptable(MODELS["experts"]) if ".moe." in name]
    assert names == ["sparse.moe.down", "sparse.moe.router", "sparse.moe.up"]
    model = tuned(MODELS["experts"], lora=LoraConfig(rank=2, targets=("moe.*",)), frozen=())
    shapes = jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=range(1), embed=False, head=False)
    )["blocks"]["sparse"]["moe"]
    assert shapes["up" + LORA_A].shape == (1, 2, 16, 2)
    assert shapes["up" + LORA_B].shape == (1, 2, 2, 64)
    assert model.split["blocks.sparse.moe.up" + LORA_A] == -3


def test_a_model_without_adapters_and_frozen_parameters_is_itself() -> None:
    model = MODELS["llama"]
    assert tuned(model, lora=LoraConfig(), frozen=()) is model
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"rank": -1}, "`rank` must be from 0 to 65536, not -1"),
        ({"rank": 1, "alpha": 0.0}, "`alpha` must be above 0 and at most 1e.38, not 0.0"),
        ({"rank": 1, "targets": ()}, "`targets` must have at least one pattern"),
    )
    for wrong, words in refused:
        with pytest.raises(ValueError, match=words):
            LoraConfig(**wrong)
