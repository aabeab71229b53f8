"""The closed forms against real arrays, and against what XLA counts in the compiled programs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.models import gpt_costs, parameter_bytes, train_flops_per_token
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.moe.routing import Dispatch
from jaxpipe.runtime.blas import chosen_products
from jaxpipe.runtime.blas.product_lowering import use_products
from tests.oracles import whole_model as uncut
from tests.oracles.whole_model import SMALL, UNTIED

CONFIG = GptConfig(num_layers=2, dim=256, num_heads=4, sequence=128, vocabulary=512)
BATCH = 2

SWITCH = replace(SMALL, experts=5)
SGMOE = replace(UNTIED, experts=4, experts_per_token=2, capacity_factor=2.5, z_loss=0.1)
SORTED = replace(SWITCH, experts_per_token=3, dispatch=Dispatch.RAGGED, balance_loss=0.1)
LABELS = replace(UNTIED, classes=5, causal=False)
PICTURES = replace(LABELS, patch=2, experts=3)  # of 6 x 6 pixels: 9 patches
MODELS = {
    "tied": SMALL,
    "untied": UNTIED,
    "switch": SWITCH,
    "sgmoe": SGMOE,
    "sorted": SORTED,
    "labels": LABELS,
    "pictures": PICTURES,
}

KEEP = jax.checkpoint_policies
POLICIES = {
    "none": KEEP.everything_saveable,
    "dots": KEEP.save_from_both_policies(
        KEEP.dots_with_no_batch_dims_saveable, KEEP.save_only_these_names("attention")
    ),
    "full": KEEP.nothing_saveable,
}
REMATS = list(POLICIES)


def bytes_of(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def flops(f: Callable[..., Any], *args: Any) -> float:
    use_products({chosen_products.SWITCH: "off"})  # XLA counts no calls of a BLAS
    cost = jax.jit(f).lower(*args).compile().cost_analysis()
    assert cost is not None
    return cost["flops"]


def under(remat: str, gpt: Gpt) -> Callable[..., Any]:
    """Return the forward of one layer that also returns its vjp."""
    block = gpt.block if remat == "none" else jax.checkpoint(gpt.block, policy=POLICIES[remat])
    return lambda layer, x, key: jax.vjp(lambda layer, x: block(layer, x, key), layer, x)


def layer_of(gpt: Gpt) -> dict[str, Any]:
    """Return the shapes of one layer's parameters, in the number format of its products."""
    init = partial(gpt.init, layers=range(1), embed=False, head=False)
    stacked = jax.eval_shape(init, jax.random.key(0))["blocks"]
    dtype = gpt.config.compute_dtype
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], dtype), stacked)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize(
    ("embed", "head"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_parameters_are_counted(config: GptConfig, layers: int, embed: bool, head: bool) -> None:
    config = replace(config, param_dtype="bfloat16")
    init = partial(Gpt(config).init, layers=range(layers), embed=embed, head=head)
    shapes = jax.eval_shape(init, jax.random.key(0))
    held = {"layers": layers, "embed": embed, "head": head}
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert gpt_costs.num_parameters(config, **held) == count
    assert parameter_bytes(config, **held) == bytes_of(shapes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_activation_is_counted(dtype: str) -> None:
    gpt = Gpt(replace(SMALL, compute_dtype=dtype))
    params = jax.eval_shape(partial(uncut.init, gpt))
    x = jax.eval_shape(gpt.embed, params, uncut.random_tokens(gpt, 3, 7), None)
    assert gpt_costs.activation_bytes(gpt.config, batch=3, sequence=7) == bytes_of(x)


@pytest.mark.parametrize("remat", REMATS)
@pytest.mark.parametrize(
    ("config", "dtype", "rate", "batch", "seq"),
    [
        (SMALL, "float32", 0.0, 1, 1),
        (SMALL, "float32", 0.1, 3, 7),
        (SMALL, "bfloat16", 0.0, 3, 7),
        (SMALL, "float16", 0.0, 2, 10),
        (SWITCH, "float32", 0.0, 3, 7),
        (SWITCH, "float32", 0.1, 3, 7),
        (SGMOE, "bfloat16", 0.0, 2, 10),
        (SORTED, "float32", 0.0, 2, 6),
    ],
)
def test_residuals_are_counted(
    config: GptConfig, remat: str, dtype: str, rate: float, batch: int, seq: int
) -> None:
    gpt = Gpt(replace(config, compute_dtype=dtype, dropout=rate))
    x = jnp.ones((batch, seq, gpt.config.dim), dtype)
    _, vjp = jax.eval_shape(jax.jit(under(remat, gpt)), layer_of(gpt), x, jax.random.key(0))
    weights, activation = vjp.args_res
    assert len(jax.tree.leaves(weights)) <= (23 if config.experts else 12)
    held = bytes_of((activation, vjp.opaque_residuals))
    costs = gpt_costs.layer_residual_bytes(gpt.config, batch=batch, sequence=seq)
    key = 8 if rate and remat != "none" else 0  # to draw the masks again
    assert held == getattr(costs, remat) + key


# XLA also counts the operations between the matrix products: some 90 per element of the residual
# stream forward and 260 backward, against 24 * 256 + 4 * 128 = 6,656 and more than twice that in
# the products. The smallest product of a layer is 3.8 % of its forward, so 2 % would miss none.
BETWEEN = 0.02


def assert_counts(counted: float, closed_form: int) -> None:
    assert closed_form <= counted <= closed_form * (1 + BETWEEN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "remat"),
    [
        *((CONFIG, remat) for remat in REMATS),
        # Both kinds of experts have one closed form.
        (replace(CONFIG, experts=4), "full"),
        (replace(CONFIG, experts=3, experts_per_token=2), "none"),
        (replace(CONFIG, experts=3, experts_per_token=2), "dots"),
    ],
    ids=[*(f"dense-{remat}" for remat in REMATS), "switch-full", "sgmoe-none", "sgmoe-dots"],
)
def test_flops_of_a_layer_are_those_of_xla(config: GptConfig, remat: str) -> None:
    gpt = Gpt(config)
    layer, x = layer_of(gpt), jnp.ones((BATCH, config.sequence, config.dim))
    sizes = {"batch": BATCH, "sequence": config.sequence}
    forward = under(remat, gpt)
    counted = flops(forward, layer, x, None)
    assert_counts(counted, gpt_costs.layer_forward_flops(config, **sizes))
    y, vjp = jax.eval_shape(jax.jit(forward), layer, x, None)
    costs = gpt_costs.layer_backward_flops(config, **sizes)
    assert_counts(flops(lambda vjp, dy: vjp(dy), vjp, y), getattr(costs, remat))


@pytest.mark.parametrize("tied", [True, False])
def test_flops_of_the_head_are_those_of_xla(tied: bool) -> None:
    gpt = Gpt(replace(CONFIG, tied=tied))
    init = partial(gpt.init, layers=range(0), embed=True, head=True)
    params = jax.eval_shape(init, jax.random.key(0))
    tokens = uncut.random_tokens(gpt, BATCH, CONFIG.sequence)
    sizes = {"batch": BATCH, "sequence": CONFIG.sequence}
    x = jax.eval_shape(gpt.embed, params, tokens, None)
    assert_counts(flops(gpt.head, params, x), gpt_costs.head_forward_flops(gpt.config, **sizes))


def test_training_is_three_forwards() -> None:
    sizes = {"batch": 1, "sequence": CONFIG.sequence}
    layer = gpt_costs.layer_forward_flops(CONFIG, **sizes)
    head = gpt_costs.head_forward_flops(CONFIG, **sizes)
    whole = 3 * (CONFIG.num_layers * layer + head)
    assert train_flops_per_token(CONFIG, sequence=CONFIG.sequence) * 128 == whole
