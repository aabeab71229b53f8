"""The training step to shard: gradients of the mean loss, then the optimizer.

The state is a tree, and so are its paths in a strategy::

    {"params":    {"embed": ..., "blocks": {"0": ..., "1": ...}, "head": ...},
     "optimizer": what optax keeps,
     "master":    the parameters in float32, if `params` are in a shorter format}

A layer is a subtree of its own, not a slice of stacked arrays: a strategy may treat each as it
likes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Integer, Key

from jaxpipe.baselines.autoshard.spmd.microbatches import accumulated
from jaxpipe.runtime.stage.model import Varied

Tree: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Tree, Array, Array], tuple[Tree, Array]]


class LossModel(Protocol):
    """A model with a loss, such as `jaxpipe.models.gpt` and `jaxpipe.baselines.gpt.alpa_gpt`."""

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model."""
        ...

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Tree:
        """Return fresh parameters; every leaf of "blocks" is stacked over the layers."""
        ...

    def embed(
        self, params: Tree, inputs: Integer[Array, "batch ..."], key: Key[Array, ""] | None, /
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer."""
        ...

    def block(
        self, layer: Tree, x: Float[Array, "batch seq dim"], key: Key[Array, ""] | None, /
    ) -> Float[Array, "batch seq dim"] | tuple[Float[Array, "batch seq dim"], Float[Array, ""]]:
        """Apply one layer; if it adds to the loss, return a pair of its output and that."""
        ...

    def loss(
        self, params: Tree, x: Float[Array, "batch seq dim"], targets: Int[Array, "batch ..."], /
    ) -> Float[Array, ""]:
        """Return the summed loss."""
        ...


def initial_state(
    model: LossModel,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    *,
    dtype: str,
) -> Tree:
    """Return a fresh state; with a `dtype` shorter than float32 it has a master copy."""
    params = unstacked(
        model.init(key, layers=range(model.num_layers), embed=True, head=True), model.num_layers
    )
    master = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    if dtype == "float32":
        return {"params": master, "optimizer": optimizer.init(master)}
    return {
        "params": jax.tree.map(lambda leaf: leaf.astype(dtype), params),
        "optimizer": optimizer.init(master),
        "master": master,
    }


def unstacked(params: Tree, num_layers: int) -> Tree:
    """Return the parameters with a subtree for each layer, named by its number."""
    blocks = {
        str(layer): jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
        for layer in range(num_layers)
    }
    return {**params, "blocks": blocks}


def train_step(
    model: LossModel,
    optimizer: optax.GradientTransformation,
    *,
    remat: bool,
    microbatches: int = 1,
) -> Step:
    """Return a step: state, tokens and targets in; the next state and the mean loss out.

    The mean is over the targets that are not negative. With `remat` each layer is recomputed in
    the backward, from its input. With more than one of `microbatches`, gradients and loss are
    marked as sums, which a sharded step with as many microbatches adds up; without sharding, the
    step computes the whole batch at once, and returns the same.
    """

    def block(number: int, weights: Tree, x: Array) -> Any:
        of_layer = model.of_layer(number) if isinstance(model, Varied) else model
        return of_layer.block(weights, x, None)

    def summed_loss(params: Tree, tokens: Array, targets: Array) -> Array:
        added: list[Array] = []
        # Scopes: a strategy by names of operators finds their equations, of the backward too.
        with jax.named_scope("embed"):
            x = model.embed(params, tokens, None)
        # Unrolled, not scanned: a strategy may shard every layer in its own way.
        for layer in range(model.num_layers):
            with jax.named_scope(f"layer{layer}"):
                of_layer = partial(block, layer)
                apply = jax.checkpoint(of_layer) if remat else of_layer
                output = apply(params["blocks"][str(layer)], x)
            x, *more = output if isinstance(output, tuple) else (output,)
            added += more
        # Without layers that add to it, no operation is added either.
        with jax.named_scope("head"):
            loss = model.loss(params, x, targets)
        return sum(added, loss)

    def gradients(params: Tree, tokens: Array, targets: Array) -> tuple[Array, Tree]:
        if microbatches > 1:
            return _of_sums(summed_loss, params, tokens, targets)
        # `loss` is a sum: the mean needs the number of targets, which padding lowers.
        mean = lambda *arguments: summed_loss(*arguments) / _num_targets(targets)  # noqa: E731
        loss, grads = jax.value_and_grad(mean)(params, tokens, targets)
        # Moments and updates are float32: small updates would vanish in a shorter format.
        return loss, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), grads)

    def step(state: Tree, tokens: Array, targets: Array) -> tuple[Tree, Array]:
        loss, grads = gradients(state["params"], tokens, targets)
        master = state.get("master", state["params"])
        updates, moments = optimizer.update(grads, state["optimizer"], master)
        new = optax.apply_updates(master, updates)
        if "master" not in state:
            return {"params": new, "optimizer": moments}, loss
        # Cast from the master each step: rounding does not accumulate.
        cast = jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), new, state["params"])
        return {"params": cast, "optimizer": moments, "master": new}, loss

    return step


def _of_sums(
    summed_loss: Callable[[Tree, Array, Array], Array], params: Tree, tokens: Array, targets: Array
) -> tuple[Array, Tree]:
    """Return the mean loss and its gradients, from sums that are marked."""
    # A constant, which all microbatches share: gradients of a bare sum overflow float16.
    size = jnp.float32(targets.size)
    scaled = lambda *arguments: summed_loss(*arguments) / size  # noqa: E731
    loss, grads = jax.value_and_grad(scaled)(params, tokens, targets)
    # In float32 before they are added up.
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), grads)
    loss, wide, num_targets = accumulated((loss, wide, _num_targets(targets)))
    factor = size / num_targets
    return loss * factor, jax.tree.map(lambda leaf: leaf * factor, wide)


def _num_targets(targets: Array) -> Array:
    return jnp.sum((targets >= 0).astype(jnp.float32))
