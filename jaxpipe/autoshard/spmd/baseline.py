"""Hand-written strategies as data: data parallelism, Megatron's tensor parallelism, ZeRO, products.

Only the arguments and results are said; how each operator is computed follows from them
(`jaxpipe.autoshard.spmd.propagate`). What ZeRO shards is split along the first dim that the devices
of an axis dp divide and no other axis splits, or else along one that another splits already.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3; Rajbhandari et al. 2020, "ZeRO", section 5.
"""

from collections.abc import Mapping
from typing import Any

import jax

from jaxpipe.autoshard.graph import path_name
from jaxpipe.autoshard.strategy import (
    Axis,
    MeshShape,
    Sharding,
    Strategy,
    ZeroLevel,
    replicated,
    split_along,
)

_STATE, _DATA = "state", ("tokens", "targets")


def baseline(
    state: Any,
    batch: tuple[int, int],
    *,
    mesh: MeshShape,
    split: Mapping[str, int],
    zero: ZeroLevel = ZeroLevel.NONE,
) -> Strategy:
    """Return the strategy that a person would write for a step of `train_step`.

    The batch is split over dp; what `split` names, and its optimizer state, over op.

    Args:
        state: the state of the step, or its shapes.
        batch: sequences and tokens of each.
        mesh: the devices.
        split: dims by the parameters' names without the layer's number, "blocks.mlp.up.kernel".
        zero: what the devices of axis dp share.
    """
    leaves = jax.tree_util.tree_leaves_with_path(state)
    stored = {
        path_name(_STATE, keys): _stored(path_name(_STATE, keys), leaf, mesh, split, zero)
        for keys, leaf in leaves
    }
    data = split_along(2, 0, (Axis.DP,) if mesh.dp > 1 else ())
    assert batch[0] % mesh.dp == 0, (batch, mesh)
    return Strategy(
        name=_name(mesh, zero),
        mesh=mesh,
        arguments=stored | dict.fromkeys(_DATA, data),
        results=stored | {"loss": replicated(0)},
        zero=zero,
    )


def _name(mesh: MeshShape, zero: ZeroLevel) -> str:
    base = f"dp {mesh.dp} x op {mesh.op}"
    return base if zero is ZeroLevel.NONE else f"{base}, ZeRO {zero.value}"


def _stored(
    path: str, leaf: Any, mesh: MeshShape, split: Mapping[str, int], zero: ZeroLevel
) -> Sharding:
    dim = _split_dim(path, split)
    sharding = replicated(len(leaf.shape))
    if dim is not None and mesh.op > 1 and leaf.shape[dim] % mesh.op == 0:
        sharding = split_along(len(leaf.shape), dim, (Axis.OP,))
    is_param = path.startswith(f"{_STATE}.params.")
    has_master = not is_param or zero is ZeroLevel.PARAMETERS
    if zero is ZeroLevel.NONE or mesh.dp == 1 or not has_master:
        return sharding
    return _shared(sharding, tuple(leaf.shape), mesh)


def _split_dim(path: str, split: Mapping[str, int]) -> int | None:
    """Find whose leaf it is by the end of its path, less the layer's number."""
    words = [word for word in path.split(".") if not word.isdecimal()]
    for start in range(len(words)):
        if (name := ".".join(words[start:])) in split:
            return split[name]
    return None


def _shared(sharding: Sharding, shape: tuple[int, ...], mesh: MeshShape) -> Sharding:
    """Split one more dim, over dp, if there is one that divides evenly."""
    free = [dim for dim, axes in enumerate(sharding.dims) if not axes]
    taken = [dim for dim, axes in enumerate(sharding.dims) if axes]
    for dim in (*free, *taken):
        dims = list(sharding.dims)
        dims[dim] = (*dims[dim], Axis.DP)
        grown = Sharding(tuple(dims))
        if grown.fits(shape, mesh):
            return grown
    return sharding
