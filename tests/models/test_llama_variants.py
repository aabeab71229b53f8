"""Kinds of the family `llama` beside Llama itself: logits of NumPy, parameters and residuals."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from jaxpipe.models import LlamaConfig, layer_residual_bytes, num_parameters, parameters_of_part
from jaxpipe.models.decoder import Decoder
from jaxpipe.models.kernels.rotary import frequencies
from jaxpipe.models.llama import Llama
from jaxpipe.models.rope_scaling import RopeScaling
from tests.models.test_gpt_costs import POLICIES, bytes_of
from tests.models.test_llama_costs import layer_of, under
from tests.oracles import numpy_llama
from tests.oracles import whole_model as uncut
from tests.oracles.llamas import (
    DYNAMIC,
    GEMMA3_RAGGED,
    GRANITE,
    OLMO2,
    PHI3,
    PLAIN,
    RAGGED,
    SHORT,
    VARIANTS,
    YARN,
)

every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


@pytest.mark.slow
@every_variant
def test_logits_are_those_of_numpy(config: LlamaConfig) -> None:
    llama = Llama(replace(config, num_layers=1))
    params = uncut.disturbed(llama)
    tokens = uncut.random_tokens(llama, 2, 9)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    theirs = numpy_llama.logits(llama.config, wide, np.asarray(tokens, np.int64))
    np.testing.assert_allclose(uncut.logits(llama, params, tokens), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("config", RAGGED.values(), ids=RAGGED)
def test_layers_that_are_no_groups_have_the_logits_of_numpy(config: LlamaConfig) -> None:
    llama = Llama(config)
    params = uncut.disturbed(llama)
    tokens = uncut.random_tokens(llama, 2, 9)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    theirs = numpy_llama.logits(config, wide, np.asarray(tokens, np.int64))
    np.testing.assert_allclose(uncut.logits(llama, params, tokens), theirs, rtol=1e-4, atol=1e-4)


def test_a_layer_among_others_has_a_model_of_its_own() -> None:
    llama = Llama(GEMMA3_RAGGED)
    assert llama.equal_layers(range(5)) == [range(2), range(2, 3), range(3, 5)]
    assert llama.equal_layers(range(3, 5)) == [range(3, 5)]
    assert llama.of_layer(0) is llama.of_layer(4)
    with pytest.raises(AssertionError, match="layers differ"):
        llama.block({}, jnp.ones((1, 2, 16)), None)


@pytest.mark.slow
def test_a_text_that_grows_has_the_logits_of_the_whole() -> None:
    llama = Llama(replace(PHI3, rope_scaling=RopeScaling.YARN, rope_factor=2.0, rope_high=32.0))
    params = uncut.disturbed(llama)
    tokens = uncut.random_tokens(llama, 1, 6)
    decoder = Decoder(llama, 6)
    _, cache = decoder.prefill(params, tokens[:, :5], jnp.array([5]))
    logits, _ = decoder.step(params, tokens[:, 5], jnp.array([5]), cache)
    np.testing.assert_allclose(logits, uncut.logits(llama, params, tokens)[:, 5], atol=1e-4)


@every_variant
@pytest.mark.parametrize("tensor", [1, 4])
def test_parameters_are_counted(config: LlamaConfig, tensor: int) -> None:
    config = replace(config, num_kv_heads=4)
    llama, held = Llama(config), 0
    init = partial(llama.init, layers=range(2), embed=True, head=True)
    shapes = jax.eval_shape(init, jax.random.key(0))
    for path, leaf in jax.tree.leaves_with_path(shapes):
        dim = llama.split.get(".".join(key.key for key in path))
        is_split = dim is not None and leaf.shape[dim] % tensor == 0
        held += math.prod(leaf.shape) // (tensor if is_split else 1)
    stage = {"layers": 2, "embed": True, "head": True}
    assert parameters_of_part(config, **stage, tensor=tensor) == held
    if tensor == 1:
        assert num_parameters(config, **stage) == held


@pytest.mark.parametrize("remat", POLICIES)
@pytest.mark.parametrize("config", [OLMO2, GRANITE, PHI3], ids=["olmo2", "granite", "phi3"])
def test_residuals_are_counted(config: LlamaConfig, remat: str) -> None:
    llama = Llama(replace(config, compute_dtype="bfloat16"))
    x = jnp.ones((2, 7, config.dim), "bfloat16")
    _, vjp = jax.eval_shape(jax.jit(under(llama, remat)), layer_of(llama), x)
    _, activation = vjp.args_res
    kept = bytes_of((activation, vjp.opaque_residuals))
    counted = layer_residual_bytes(llama.config, batch=2, sequence=7)
    # The frequencies of queries and of keys, float32, and two factors of the residual stream: the
    # same for any number of tokens.
    constants = 2 * (config.turned_width // 2) * 4
    constants += 4 * (config.residual_factor != 1 and remat == "none")
    assert kept == getattr(counted, remat) + constants


def test_yarn_leaves_high_frequencies_and_divides_low_ones() -> None:
    config = replace(YARN, head_width=64, rope_base=10_000.0, rope_sequence=4096)
    ratio = frequencies(replace(config, rope_scaling=RopeScaling.NONE)) / frequencies(config)
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(config.rope_factor)
    assert np.all(np.diff(ratio) >= 0)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (PLAIN, {"rotary_width": 3}, "`rotary_width` must be even and at most .*, 4, not 3"),
        (PLAIN, {"rotary_width": 6}, "`rotary_width` must be even and at most .*, 4, not 6"),
        (DYNAMIC, {"sequence": 13}, "`sequence` must be at most `rope_sequence`, 12, .* not 13"),
        (SHORT, {"rope_short": [1.0, 2.0]}, "`rope_short` must have 3 numbers above 0 .* not "),
        (SHORT, {"rope_long": [1.0, 2.0, 0.0]}, "`rope_long` must have 3 numbers above 0 .*, not"),
        (SHORT, {"rope_sequence": 1}, "`rope_sequence` must be at least 2 .*'longrope', not 1"),
        (PLAIN, {"rope_long": [1.0, 2.0]}, "`rope_long` must have 0 numbers above 0 with .*'none'"),
        (YARN, {"rope_low": 32.0}, "`rope_low` must be above 0 and below `rope_high`, 32.0, not"),
        (PLAIN, {"residual_factor": 0.0}, "`residual_factor` must be above 0, not 0.0"),
        (PLAIN, {"logits_divisor": math.inf}, "`logits_divisor` must be above 0, not inf"),
    ],
)
def test_what_is_wrong_is_named(config: LlamaConfig, change: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(msgspec.to_builtins(config) | change, LlamaConfig)
