"""One stage over the devices of one rank: a mesh with the axes `data`, `context` and `tensor`.

::

    data = 2, tensor = 2        columns 0 .. n/2     columns n/2 .. n     of qkv and up, and so on
    first half of microbatch    device 0             device 1
    second half                 device 2             device 3

Each device has its part of the split parameters, of their gradients and of their moments; the model
defines which dim of which parameter is split. XLA inserts the all-reduces between the devices: for
a model that is split as in the source, one after attention and one after the MLP, in each
direction. With sequence parallelism they are a reduce-scatter and an all-gather, and between them
each device has its part of every sequence. The axis `context` is that of
`jaxpipe.runtime.stage.context`.

With a sharded mesh, parameters, gradients and moments are also split over the axes `data` and
`context`, each along its longest dim that divides evenly (ZeRO-3).

Arrays that enter or leave the rank, activations and buckets, are replicated on its devices.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4.2.2; Rajbhandari et al. 2020, "ZeRO", section
5.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import DictKey, GetAttrKey, KeyPath
from jaxtyping import Array

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.rank_mesh import MeshConfig

DATA, CONTEXT, TENSOR = "data", "context", "tensor"

Device: TypeAlias = Any
"""A device of jax, whose type has no public name to annotate with."""

Axis: TypeAlias = str | tuple[str, ...] | None
"""What one dim of an array is split over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayout:
    """The sharding of the arrays of a stage; without a mesh, they are on one device.

    `split` maps parameters, by their keys such as "blocks.mlp.up.kernel", to the dim that is split
    over the axis `tensor`, counted from the last, which is -1. All other arrays, and dims that do
    not divide evenly, are replicated; with `shards_data` they are split over the other axes. With
    `splits_between`, sequences are split over `tensor` between the products of layers.
    """

    mesh: Mesh | None = None
    shards_data: bool = False
    splits_between: bool = False
    # No part of the hash: a dictionary has none.
    split: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def num_parts(self) -> int:
        """The number of parts of each sequence."""
        return 1 if self.mesh is None else self.mesh.shape[CONTEXT]

    @property
    def whole(self) -> NamedSharding | None:
        """The sharding of replicated arrays."""
        return self._sharding()

    def of(self, tree: Any) -> Any:
        """Return the shardings of parameters, or of trees with their names: gradients, moments."""
        return None if self.mesh is None else jax.tree.map_with_path(self._of_leaf, tree)

    def of_result(self, function: Callable, *arguments: Any) -> Any:
        """Return the shardings of the parameters, gradients or moments that a function returns."""
        return None if self.mesh is None else self.of(jax.eval_shape(function, *arguments))

    def place(self, tree: Any) -> Any:
        """Return parameters or moments as arrays on the devices that compute with them."""
        return jax.device_put(tree, self.of(tree))

    def shape(self, shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
        """Return the shape of an array that enters or leaves the rank, for a compiler."""
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.whole)

    def shapes(self, tree: Any, shardings: Any) -> Any:
        """Return the shapes and dtypes of arrays, and on a mesh their shardings."""
        if self.mesh is None:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, shardings
        )

    def entering(self, function: Callable, *positions: int) -> Callable:
        """Return `function` with its arguments at `positions` split over the axis `data`.

        They arrive replicated, so that splitting them needs no communication.
        """
        if self.mesh is None:
            return function

        @wraps(function)
        def entered(*arguments: Any) -> Any:
            return function(
                *(self._split_data(a) if i in positions else a for i, a in enumerate(arguments))
            )

        return entered

    def in_parts(self, tokens: Array) -> Array:
        """Return tokens (batch, seq, ...), each device with a part of the samples and of these."""
        sharding = self._sharding(DATA, CONTEXT)
        return tokens if sharding is None else jax.lax.with_sharding_constraint(tokens, sharding)

    def between_layers(self, x: Array) -> Array:
        """Return activations (batch, seq, dim) as they lie between layers.

        With `splits_between`, each device of the axis `tensor` has a part of each sequence there.
        """
        if self.mesh is None or not self.splits_between:
            return x
        return jax.lax.with_sharding_constraint(x, self._sharding(DATA, TENSOR))

    def visible(self) -> AbstractContextManager[object]:
        """Let layers see the mesh while they are traced, where sequences are split between them."""
        if self.mesh is None or not self.splits_between:
            return nullcontext()
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def _split_data(self, tree: Any) -> Any:
        sharding = self._sharding(DATA)
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, sharding) if x.ndim else x, tree
        )

    def _of_leaf(self, path: KeyPath, leaf: jax.ShapeDtypeStruct) -> NamedSharding | None:
        assert self.mesh is not None, path
        dim = self.split.get(_name(path))
        # `dim` counts from the last: leaves of blocks have one more at the front, the layer.
        axes: list[Axis] = [None] * leaf.ndim
        num_parts = self.mesh.shape[TENSOR]
        if dim is not None and num_parts > 1 and leaf.shape[dim] % num_parts == 0:
            axes[dim] = TENSOR
        if self.shards_data:
            _add_data(axes, leaf.shape, self.mesh)
        # Trailing dims need no entry: shardings that mean the same compare as equal.
        while axes and axes[-1] is None:
            axes.pop()
        return self._sharding(*axes)

    def _sharding(self, *axes: Axis) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec(*axes))


def _name(path: KeyPath) -> str:
    """Return the name of a parameter, given the path of it or of its moment in a state.

    What precedes a field of a state is no part of the name; layers in a tuple have none.
    """
    words: list[str] = []
    for key in path:
        if isinstance(key, GetAttrKey):
            words.clear()
        elif isinstance(key, DictKey):
            words.append(key.key)
    return ".".join(words)


def _add_data(axes: list[Axis], shape: Sequence[int], mesh: Mesh) -> None:
    """Split the longest free dim that divides evenly over the devices with other tokens."""
    over = tuple(axis for axis in (DATA, CONTEXT) if mesh.shape[axis] > 1)
    num_parts = math.prod(mesh.shape[axis] for axis in over)
    free = [d for d, axis in enumerate(axes) if axis is None and shape[d] % num_parts == 0]
    if free:
        axes[max(free, key=lambda d: shape[d])] = over


ONE_DEVICE = StageLayout()
"""The layout of a stage without a mesh."""


def layout_over(
    devices: Sequence[Device], config: MeshConfig, *, split: Mapping[str, int]
) -> StageLayout:
    """Return the layout over the first of a rank's devices.

    Raises:
        ConfigError: there are fewer devices than the mesh needs.
    """
    if config.num_devices == 1:
        return ONE_DEVICE
    if config.num_devices > len(devices):
        raise ConfigError(
            f"{config.words} = {config.num_devices} must be at most the devices that a rank sees, "
            f"and this rank sees {len(devices)}; lower one of them, or show the rank more devices"
        )
    # `tensor` is the innermost axis: its devices, next to each other, exchange the most.
    shape = config.data, config.context, config.tensor
    mine = np.array(devices[: config.num_devices]).reshape(shape)
    return StageLayout(
        mesh=Mesh(mine, (DATA, CONTEXT, TENSOR)),
        split=split,
        shards_data=config.sharded,
        splits_between=config.sequence_parallel,
    )
