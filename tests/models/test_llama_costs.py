"""The closed forms against real arrays, against XLA's counts, and against the published sizes."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.models import (
    LlamaConfig,
    build_model,
    costs,
    layer_residual_bytes,
    layer_residual_bytes_of_part,
    num_parameters,
    parameters_of_part,
    preset_config,
)
from jaxpipe.models.llama import Llama
from tests.models.test_gpt_costs import BETWEEN, POLICIES, assert_counts, bytes_of, flops
from tests.oracles.llamas import (
    GEMMA,
    GEMMA3,
    KINDS,
    LLAMA,
    MIXTRAL,
    QWEN3,
    QWEN3_MOE,
    SMOLLM3,
)

ENDS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("config", [*KINDS.values(), GEMMA3, SMOLLM3, QWEN3_MOE])
@pytest.mark.parametrize(("embed", "head"), ENDS)
@pytest.mark.parametrize("tensor", [1, 4])
def test_parameters_are_counted(config: LlamaConfig, embed: bool, head: bool, tensor: int) -> None:
    # Heads that the parts divide, as a mesh must: `jaxpipe.config` checks it.
    config = replace(config, num_kv_heads=4, vocabulary=18)
    llama, held = Llama(config), 0
    init = partial(llama.init, layers=range(2), embed=embed, head=head)
    shapes = jax.eval_shape(init, jax.random.key(0))
    for path, leaf in jax.tree.leaves_with_path(shapes):
        dim = llama.split.get(".".join(key.key for key in path))
        is_split = dim is not None and leaf.shape[dim] % tensor == 0
        held += math.prod(leaf.shape) // (tensor if is_split else 1)
    stage = {"layers": 2, "embed": embed, "head": head}
    assert parameters_of_part(config, **stage, tensor=tensor) == held
    if tensor == 1:
        assert num_parameters(config, **stage) == held


# The total of the published weight files, as the page of each model states it; Qwen3 0.6B's files
# hold its tied table twice.
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen3-0.6b", 751_632_384 - 151_936 * 1024),
        ("qwen3-8b", 8_190_735_360),
        ("mistral-7b", 7_241_732_096),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-3-1b", 999_885_952),
        ("gemma-3-270m", 268_098_176),
        ("smollm3-3b", 3_075_098_624),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama-tiny", 4_492_544),
    ],
)
def test_published_sizes(name: str, count: int) -> None:
    config = preset_config(name)
    held = {"layers": config.num_layers, "embed": True, "head": True}
    assert num_parameters(config, **held) == count
    model = build_model(config)
    init = partial(model.init, layers=range(config.num_layers), embed=True, head=True)
    shapes = jax.eval_shape(init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count


def under(llama: Llama, remat: str) -> Callable[..., Any]:
    """Return the forward of one layer that also returns its vjp."""
    block = llama.block
    if remat != "none":
        block = jax.checkpoint(block, policy=POLICIES[remat], static_argnums=2)
    return lambda layer, x: jax.vjp(lambda layer, x: block(layer, x, None), layer, x)


def layer_of(llama: Llama) -> dict[str, Any]:
    init = partial(llama.init, layers=range(1), embed=False, head=False)
    stacked = jax.eval_shape(init, jax.random.key(0))["blocks"]
    dtype = llama.config.compute_dtype
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], dtype), stacked)


@pytest.mark.parametrize("remat", POLICIES)
@pytest.mark.parametrize("config", [LLAMA, QWEN3, GEMMA, GEMMA3, SMOLLM3, MIXTRAL])
def test_residuals_are_counted(config: LlamaConfig, remat: str) -> None:
    dtype = "float32" if config is LLAMA else "bfloat16"
    llama = Llama(replace(config, compute_dtype=dtype))
    x = jnp.ones((2, 7, config.dim), dtype)
    _, vjp = jax.eval_shape(jax.jit(under(llama, remat)), layer_of(llama), x)
    _, activation = vjp.args_res
    held = bytes_of((activation, vjp.opaque_residuals))
    counted = layer_residual_bytes(llama.config, batch=2, sequence=7)
    # The frequencies of queries and of keys, float32: the same for any number of tokens.
    turned = len(config.windows) - config.unturned
    constants = turned * 2 * (config.width // 2) * 4
    assert held == getattr(counted, remat) + constants


def test_parts_keep_the_residual_stream_whole() -> None:
    sizes: dict[str, Any] = {"batch": 2, "sequence": 8}
    whole = layer_residual_bytes(GEMMA, **sizes)
    assert layer_residual_bytes_of_part(GEMMA, **sizes, tensor=1) == whole
    half = layer_residual_bytes_of_part(GEMMA, **sizes, tensor=2)
    assert half.full == whole.full
    assert whole.none / 2 < half.none < whole.none


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "remat"),
    [(LLAMA, "none"), (QWEN3, "full"), (GEMMA, "full")],
    ids=["llama", "qwen3", "gemma2"],
)
def test_flops_are_those_of_xla(config: LlamaConfig, remat: str) -> None:
    config = replace(config, dim=256, head_width=64, hidden=512, sequence=96)
    config = replace(config, window=config.window and 96)  # no score is left out
    llama = Llama(config)
    layer, x = layer_of(llama), jnp.ones((1, 96, 256))
    sizes: dict[str, Any] = {"batch": 1, "sequence": 96}
    forward = under(llama, remat)
    assert_counts(flops(forward, layer, x), costs.layer_forward_flops(config, **sizes))
    y, vjp = jax.eval_shape(jax.jit(forward), layer, x)
    stated = getattr(costs.layer_backward_flops(config, **sizes), remat)
    counted = flops(lambda vjp, dy: vjp(dy), vjp, y)
    # Under `full` XLA finds the scores of the recomputed forward in the backward, and computes
    # them once.
    merged = (remat == "full") * 2 * 96 * 96 * config.query_width * len(config.windows)
    assert stated - merged <= counted <= stated * (1 + BETWEEN)


def test_a_window_bounds_the_scores() -> None:
    sizes: dict[str, Any] = {"batch": 1, "sequence": 96}
    wide, narrow = (
        costs.layer_forward_flops(replace(LLAMA, window=window), **sizes) for window in (0, 32)
    )
    assert wide - narrow == 4 * 96 * LLAMA.query_width * (96 - 32)


def test_training_is_three_forwards() -> None:
    sizes: dict[str, Any] = {"batch": 1, "sequence": 12}
    layer = costs.layer_forward_flops(LLAMA, **sizes)
    head = costs.head_forward_flops(LLAMA, **sizes)
    whole = 3 * (LLAMA.num_layers * layer + head)
    assert costs.train_flops_per_token(LLAMA, sequence=12) == whole // 12
