"""Trees that hold a part of the parameters: those that are trained, where others are frozen.

A partial tree has all dicts of the whole one, and some of its leaves::

    {"attention": {"kernel", "lora_a", "lora_b"}, "norm": {"scale"}}     params
    {"attention": {          "lora_a", "lora_b"}, "norm": {}}            trained

Gradients, moments, buckets and messages are those of the partial tree; nothing else in a step knows
of frozen parameters. Where some layers of a leaf are trained and others are not, the leaf is
trained as a whole, and a mask holds the others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.stage.model import Model, Parameters, Tuned

_BLOCKS = "blocks"


def select(tree: Any, keeps: Callable[[str], bool], path: tuple[str, ...] = ()) -> Any:
    """Return the leaves whose name `keeps`; names are the keys joined by dots.

    Layers that are a tuple of trees have the names of the stacked ones.

    >>> select({"blocks": ({"up": 1, "down": 2}, {"up": 3, "down": 4})}, "blocks.up".__eq__)
    {'blocks': ({'up': 1}, {'up': 3})}
    """
    if isinstance(tree, tuple):
        return tuple(select(subtree, keeps, path) for subtree in tree)
    selected = {}
    for key, value in tree.items():
        name = (*path, key)
        if isinstance(value, dict | tuple):
            selected[key] = select(value, keeps, name)
        elif keeps(".".join(name)):
            selected[key] = value
    return selected


def overlay(full: Any, part: Any) -> Any:
    """Return the whole tree with the leaves of a part in place of its own.

    >>> overlay({"a": {"x": 1, "y": 2}, "b": {"z": 3}}, {"a": {"y": 4}, "b": {}})
    {'a': {'x': 1, 'y': 4}, 'b': {'z': 3}}
    """
    if isinstance(full, tuple):
        return tuple(overlay(*pair) for pair in zip(full, part, strict=True))
    if not isinstance(full, dict):
        return part
    return {key: overlay(value, part[key]) if key in part else value for key, value in full.items()}


def restrict(full: Any, part: Any) -> Any:
    """Return the leaves of the whole tree at the places of those of a part.

    >>> restrict({"a": {"x": 1, "y": 2}, "b": {"z": 3}}, {"a": {"y": 4}, "b": {}})
    {'a': {'y': 2}, 'b': {}}
    """
    if not isinstance(part, dict):
        return full
    return {key: restrict(full[key], value) for key, value in part.items()}


def trained(model: Model, tree: Any) -> Any:
    """Return the trained parameters of a tree like the parameters; all, unless some are frozen."""
    if not isinstance(model, Tuned):
        return tree
    # A leaf of stacked layers is trained as a whole if any layer of the model is: what a stage
    # holds, and what a checkpoint has, must not depend on the partition of layers.
    return select(tree, lambda name: any(_trained_layers(model, name, range(model.num_layers))))


def is_trained(model: Model, name: str) -> bool:
    """Return whether a parameter of a checkpoint, such as "blocks.3.mlp.up.kernel", is trained."""
    return not isinstance(model, Tuned) or model.trains(name)


def held(model: Model, tree: Parameters, *, layers: range, at: Parameters) -> Parameters:
    """Return a trained tree with the values of `at` in those of the `layers` that are frozen.

    They are rows of leaves that other layers train.
    """
    if not isinstance(model, Tuned):
        return tree

    def of_leaf(path: tuple[Any, ...], leaf: jax.Array, other: jax.Array) -> jax.Array:
        rows = _trained_layers(model, ".".join(key.key for key in path), layers)
        if all(rows):
            return leaf
        mask = np.reshape(np.array(rows), (-1, *(1,) * (leaf.ndim - 1)))
        return jnp.where(mask, leaf, other)

    return jax.tree.map_with_path(of_leaf, tree, at)


def _trained_layers(model: Tuned, name: str, layers: range) -> tuple[bool, ...]:
    """Return for each layer whether its part of a leaf is trained; of the ends, one answer."""
    part, _, rest = name.partition(".")
    if part != _BLOCKS:
        return (model.trains(name),)
    return tuple(model.trains(f"{_BLOCKS}.{layer}.{rest}") for layer in layers)
