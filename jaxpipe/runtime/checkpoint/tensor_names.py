"""Names of tensors that do not depend on the partition of layers: a run can resume with any other.

A stage stacks the leaves of its layers; a checkpoint stores each layer separately::

    stage 1, layers 4 to 6                          checkpoint
    {"blocks": {"mlp": {"up": [3, 64, 256]}},  ──►  blocks.4.mlp.up  [64, 256]
                                                    blocks.5.mlp.up  [64, 256]
                                                    blocks.6.mlp.up  [64, 256]
     "head": {"scale": [64]}}                  ──►  head.scale       [64]

Parameters are nested dicts; so are gradients and the moments of an optimizer, which have the same
names after a prefix such as "mu.".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from jaxpipe.errors import CheckpointError

_BLOCKS = "blocks"


@runtime_checkable
class ShapeDtype(Protocol):
    """A leaf of a template: a `jax.ShapeDtypeStruct`, or an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dim."""
        ...

    @property
    def dtype(self) -> Any:
        """The dtype of its elements."""
        ...


def names(template: Mapping[str, Any], *, first_layer: int, prefix: str = "") -> tuple[str, ...]:
    """Return the names that `restore` looks up for the same arguments.

    >>> import numpy as np
    >>> names({"blocks": {"scale": np.ones((2, 3))}, "head": {}}, first_layer=4, prefix="mu.")
    ('mu.blocks.4.scale', 'mu.blocks.5.scale')
    """
    return tuple(
        name
        for path, leaf in _leaves(template)
        for name in _names(path, leaf, first_layer=first_layer, prefix=prefix)
    )


def shapes(template: Mapping[str, Any], *, first_layer: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor by its name.

    >>> import numpy as np
    >>> shapes({"blocks": {"scale": np.ones((2, 3))}}, first_layer=4)
    {'blocks.4.scale': (3,), 'blocks.5.scale': (3,)}
    """
    return {
        name: tuple(leaf.shape[path[0] == _BLOCKS :])
        for path, leaf in _leaves(template)
        for name in _names(path, leaf, first_layer=first_layer, prefix="")
    }


def flatten(
    parameters: Mapping[str, Any], *, first_layer: int, prefix: str = ""
) -> dict[str, np.ndarray]:
    """Return the arrays of a stage, by names that do not depend on the partition of layers.

    `first_layer` is the number, in the whole model, of the first layer of the stage. On the CPU
    nothing is copied; on another device, each leaf once.

    >>> import numpy as np
    >>> flat = flatten({"blocks": {"scale": np.array([[1.0], [2.0]])}}, first_layer=4)
    >>> {name: array.tolist() for name, array in flat.items()}
    {'blocks.4.scale': [1.0], 'blocks.5.scale': [2.0]}
    """
    flat: dict[str, np.ndarray] = {}
    for path, leaf in _leaves(parameters):
        array = np.asarray(leaf)
        keys = _names(path, leaf, first_layer=first_layer, prefix=prefix)
        # `array[i, ...]` stays an array where `array[i]` would become a scalar.
        parts = (array[i, ...] for i in range(len(keys))) if path[0] == _BLOCKS else (array,)
        flat |= zip(keys, parts, strict=True)
    return flat


def restore(
    template: Mapping[str, Any],
    lookup: Mapping[str, np.ndarray],
    *,
    first_layer: int,
    prefix: str = "",
) -> dict[str, Any]:
    """Return new arrays in the structure of `template`: the inverse of `flatten`, on any stage.

    The leaves of `template` have shape and dtype; those under "blocks" are stacked over the layers
    of the stage. `lookup` comes from `Checkpoint.read`, for `names` of the same arguments.

    Raises:
        CheckpointError: a tensor is not in `lookup`, or is of another shape or dtype.

    >>> import numpy as np
    >>> template = {"blocks": {"scale": np.zeros((1, 2))}}
    >>> restore(template, {"blocks.4.scale": np.array([1.0, 2.0])}, first_layer=4)
    {'blocks': {'scale': array([[1., 2.]])}}
    """
    restored: dict[str, Any] = _skeleton(template)
    for path, leaf in _leaves(template):
        keys = _names(path, leaf, first_layer=first_layer, prefix=prefix)
        shape = leaf.shape[1:] if path[0] == _BLOCKS else leaf.shape
        # Compared before any memory is taken: a configuration may state any size.
        found = [_find(lookup, key, shape=shape, dtype=leaf.dtype) for key in keys]
        out = np.empty(leaf.shape, leaf.dtype)
        parts = (out[i, ...] for i in range(len(keys))) if path[0] == _BLOCKS else (out,)
        for part, tensor in zip(parts, found, strict=True):
            part[...] = tensor
        node = restored
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = out
    return restored


def _names(path: tuple[str, ...], leaf: ShapeDtype, *, first_layer: int, prefix: str) -> list[str]:
    if path[0] != _BLOCKS:
        return [prefix + ".".join(path)]
    rest = ".".join(path[1:])
    layers = range(first_layer, first_layer + leaf.shape[0])
    return [f"{prefix}{_BLOCKS}.{layer}.{rest}" for layer in layers]


def _leaves(
    tree: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ShapeDtype]]:
    for key, value in tree.items():
        assert isinstance(key, str), key
        assert "." not in key, key  # it separates the keys of a name
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _skeleton(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _skeleton(value) if isinstance(value, Mapping) else None for key, value in tree.items()
    }


def _find(
    lookup: Mapping[str, np.ndarray], name: str, *, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    if name not in lookup:
        raise CheckpointError(
            f"`checkpoint` must contain the tensor {name}, and does not; resume with the model and"
            " optimizer that saved it"
        )
    found = lookup[name]
    if (found.shape, found.dtype) != (shape, dtype):
        raise CheckpointError(
            f"`checkpoint` must be of this model; its tensor {name} is {found.dtype}"
            f"{list(found.shape)}, not {np.dtype(dtype)}{list(shape)}; resume with the model that"
            " saved it"
        )
    return found
