"""A model of which a part is trained: a wrapper around any `Model`, for any stage.

The kernels of adapters are merged once a step, and a layer reads the merged ones::

    once a step    W' = W + scale A B
    forward        W'                              no work, no memory of its own
    backward       of A: scale of W' B^T           of W': x^T g, of its input and output's gradient
                   of B: scale A^T of W'

Gradients, moments and messages are as small as the adapters. This needs nothing of the model, and
works for every one. Without a mesh the gradient of W' is never formed: a compiled stage computes
x^T (g B^T) in place of (x^T g) B^T (`jaxpipe.runtime.stage.row_products`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxpipe.errors import ConfigError
from jaxpipe.finetune.adapter_names import (
    LORA_A,
    LORA_B,
    can_adapt,
    factor_shapes,
    is_adapter,
    matches,
    module_of,
)
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.runtime.stage.model import Hidden, Model, Parameters, WithLoss
from jaxpipe.runtime.stage.wrapped_model import WrappedModel

_ADAPTERS = 2**20
"""Folded into the key of adapters; models fold in small numbers."""


def tuned(model: Model, *, lora: LoraConfig, frozen: tuple[str, ...]) -> Model:
    """Return the model with adapters and frozen parameters, or itself if there are none.

    Raises:
        ConfigError: a pattern matches nothing, or nothing is left to train.
    """
    if not lora.is_on and not frozen:
        return model
    tuned_model = TunedModel(model, lora, frozen)
    if lora.is_on:
        _check_targets(tuned_model)
    if frozen:
        _check_frozen(tuned_model)
    return tuned_model


@dataclass(frozen=True, slots=True)
class TunedModel(WrappedModel):
    """A `Model` and `Tuned`: the wrapped model with adapters, or with frozen parameters.

    With adapters, they alone are trained; otherwise all parameters whose names no pattern matches.
    """

    lora: LoraConfig
    frozen: tuple[str, ...] = ()

    @property
    def split(self) -> Mapping[str, int]:
        """The dims of the model; of an adapter, that of its kernel which it has."""
        dims = dict(self.model.split)
        for name in self._adapted() if self.lora.is_on else ():
            dim = dims.get(f"blocks.{name}")
            if dim == -1:
                dims[f"blocks.{name}{LORA_B}"] = -1
            elif dim == -2:  # inputs, in A the first of two dims
                dims[f"blocks.{name}{LORA_A}"] = -2
            elif dim == -3:  # experts
                dims |= {f"blocks.{name}{factor}": -3 for factor in (LORA_A, LORA_B)}
        return dims

    @property
    def merges(self) -> bool:
        """Whether there are adapters."""
        return self.lora.is_on

    def trains(self, name: str) -> bool:
        """Return whether a parameter is trained."""
        if self.lora.is_on:
            return is_adapter(name)
        return not any(fnmatchcase(name, pattern) for pattern in self.frozen)

    def adds(self, name: str) -> bool:
        """Return whether a parameter is an adapter, which no imported model has."""
        return is_adapter(name)

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters; A is uniform, as PyTorch's linear layers are, and B zero."""
        params = self.model.init(key, layers=layers, embed=embed, head=head)
        if not self.lora.is_on or not layers:
            return params
        key, numbers = jax.random.fold_in(key, _ADAPTERS), jnp.arange(layers.start, layers.stop)
        blocks, kernels = params["blocks"], _flat(params["blocks"])
        for number, name in enumerate(self._adapted()):
            of_a, of_b = factor_shapes(name, kernels[name].shape[1:], self.lora.rank)
            tensor_key = jax.random.fold_in(key, number)
            a = _uniform(tensor_key, numbers, shape=of_a, bound=of_a[-2] ** -0.5)
            b = jnp.zeros((len(layers), *of_b))
            for suffix, factor in ((LORA_A, a), (LORA_B, b)):
                blocks = _with(blocks, name + suffix, factor.astype(kernels[name].dtype))
        return {**params, "blocks": blocks}

    def merged(self, params: Parameters) -> Parameters:
        """Return the parameters with merged kernels; adapters stay next to them."""
        if not self.lora.is_on or "blocks" not in params:
            return params
        blocks, leaves = params["blocks"], _flat(params["blocks"])
        for name, kernel in leaves.items():
            if name + LORA_A in leaves:
                a, b = leaves[name + LORA_A], leaves[name + LORA_B]
                product = jax.vmap(_product)(a, b)
                blocks = _with(blocks, name, kernel + self.lora.scale * product)
        return {**params, "blocks": blocks}

    def block(self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None) -> Hidden | WithLoss:
        """Apply one layer, whose kernels are merged."""
        if self.lora.is_on:
            layer = _attached(layer, self.lora.scale)
        return self.model.block(layer, x, key)

    def check_rank(self) -> None:
        """Check that no product has a smaller side than the rank of its adapter.

        Raises:
            ConfigError: one has.
        """
        kernels = _flat(_shapes(self.model, layers=range(1), ends=False)["blocks"])
        for name in self._adapted():
            of_a, of_b = factor_shapes(name, kernels[name].shape[1:], self.lora.rank)
            inputs, outputs = of_a[-2], prod(of_b[len(of_a) - 1 :])
            if self.lora.rank > (most := min(inputs, outputs)):
                raise ConfigError(
                    f"`lora.rank` must be at most {most}, the smaller side of {module_of(name)} "
                    f"({inputs} x {outputs}), not {self.lora.rank}: more columns add "
                    "nothing; lower it, or leave that product out of `lora.targets`"
                )

    def _adapted(self) -> tuple[str, ...]:
        """Return the names, in a layer, of the kernels with adapters."""
        return tuple(
            name
            for name in adaptable(self.model)
            if any(matches(module_of(name), pattern) for pattern in self.lora.targets)
        )


def partly_frozen(model: Model) -> str | None:
    """Return the name of a parameter of which some layers are frozen and others are not."""
    if not isinstance(model, TunedModel) or not model.frozen:
        return None
    for name in _flat(_shapes(model.model, layers=range(1), ends=False)["blocks"]):
        trains = {model.trains(f"blocks.{layer}.{name}") for layer in range(model.num_layers)}
        if len(trains) > 1:
            return name
    return None


def adaptable(model: Model) -> tuple[str, ...]:
    """Return the names, in a layer, of the kernels that can have adapters."""
    shapes = _shapes(model, layers=range(1), ends=False)["blocks"]
    # Leaves of blocks have one more dim, the layer.
    return tuple(name for name, leaf in _flat(shapes).items() if can_adapt(leaf.ndim - 1))


def _shapes(model: Model, *, layers: range, ends: bool) -> Parameters:
    return jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=layers, embed=ends, head=ends)
    )


def _uniform(
    key: Key[Array, ""], numbers: Int[Array, " layers"], *, shape: tuple[int, ...], bound: float
) -> Float[Array, "layers ... inputs rank"]:
    """Return uniform numbers for each layer, which depend on the number of the layer alone."""

    def of_layer(number: Array) -> Array:
        tensor_key = jax.random.fold_in(key, number)
        return jax.random.uniform(tensor_key, shape, minval=-bound, maxval=bound)

    return jax.lax.map(of_layer, numbers)


def _product(a: Array, b: Array) -> Array:
    """Return A B; of experts, that of each."""
    return a @ b if a.ndim > 2 else jnp.tensordot(a, b, 1)


def _attached(layer: Parameters, scale: float) -> Parameters:
    """Return a layer without adapters, whose merged kernels lead gradients to them."""
    leaves = _flat(layer)
    for name in [name for name in leaves if name + LORA_A in leaves]:
        kernel = _attach(leaves[name], leaves[name + LORA_A], leaves[name + LORA_B], scale)
        layer = _with(layer, name, kernel)
    return _without_adapters(layer)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attach(merged: Array, a: Array, b: Array, scale: float) -> Array:
    """Return `merged`, which is W + scale A B, as a function of A and B alone."""
    del a, b, scale
    return merged


def _attach_forward(
    merged: Array, a: Array, b: Array, scale: float
) -> tuple[Array, tuple[Array, Array]]:
    del scale
    return merged, (a, b)


def _attach_backward(
    scale: float, factors: tuple[Array, Array], of_merged: Array
) -> tuple[None, Array, Array]:
    a, b = factors
    if a.ndim > 2:  # experts
        of_a = jnp.einsum("eio,ero->eir", of_merged, b)
        of_b = jnp.einsum("eir,eio->ero", a, of_merged)
        return None, (scale * of_a).astype(a.dtype), (scale * of_b).astype(b.dtype)
    outputs = tuple(range(1, b.ndim))
    of_a = jnp.tensordot(of_merged, b, (outputs, outputs))
    of_b = jnp.tensordot(a, of_merged, ((0,), (0,)))
    return None, (scale * of_a).astype(a.dtype), (scale * of_b).astype(b.dtype)


_attach.defvjp(_attach_forward, _attach_backward)


def _flat(tree: Parameters, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the leaves of nested dicts by their keys, joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = (*path, key)
        flat |= _flat(value, name) if isinstance(value, dict) else {".".join(name): value}
    return flat


def _with(tree: Parameters, name: str, leaf: Any) -> Parameters:
    """Return nested dicts with one leaf more, or another one."""
    key, _, rest = name.partition(".")
    return {**tree, key: _with(tree[key], rest, leaf) if rest else leaf}


def _without_adapters(tree: Parameters) -> Parameters:
    return {
        key: _without_adapters(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if not is_adapter(key)
    }


def _check_targets(model: TunedModel) -> None:
    modules = tuple(map(module_of, adaptable(model.model)))
    for pattern in model.lora.targets:
        if not any(matches(module, pattern) for module in modules):
            raise ConfigError(
                f"`lora.targets` has {pattern!r:.80}, which matches no product of the layers; "
                f"choose from {', '.join(modules)}"
            )
    model.check_rank()


def _check_frozen(model: TunedModel) -> None:
    shapes = _shapes(model.model, layers=range(1), ends=True)
    ends = {part: shape for part, shape in shapes.items() if part != "blocks"}
    rest = _flat(shapes["blocks"])
    names = [
        *_flat(ends),
        *(f"blocks.{n}.{name}" for n in range(model.num_layers) for name in rest),
    ]
    for pattern in model.frozen:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"`train.frozen` has {pattern!r:.80}, which matches no parameter; the model has "
                f"{', '.join(names[:3])} and others, of which {names[-1]} is the last"
            )
    if not any(map(model.trains, names)):
        raise ConfigError(
            f"`train.frozen` ({', '.join(model.frozen)}) matches every parameter, so nothing would "
            "be trained; remove a pattern"
        )
