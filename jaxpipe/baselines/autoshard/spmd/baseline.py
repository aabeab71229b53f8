"""Baseline strategies of a training step: data parallelism, Megatron, ZeRO, combinations.

Only the shardings of arguments and results are given
(`jaxpipe.baselines.autoshard.strategy.by_hand`); those of operators are propagated from them
(`jaxpipe.baselines.autoshard.spmd.propagate`).
"""

from collections.abc import Mapping
from typing import Any

import jax

from jaxpipe.baselines.autoshard.graph import path_name
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, ZeroLevel, by_hand, replicated

_STATE = "state"


def baseline(
    state: Any,
    tokens: tuple[int, ...],
    targets: tuple[int, ...],
    *,
    mesh: MeshShape,
    split: Mapping[str, int],
    zero: ZeroLevel = ZeroLevel.NONE,
) -> Strategy:
    """Return the hand-written strategy for a step of `train_step`.

    The batch is split over dp; what `split` names, and its optimizer state, over op.

    Args:
        state: the state of the step, or its shapes.
        tokens: the shape of the inputs, examples first.
        targets: the shape of the targets.
        mesh: the devices.
        split: dims by the parameters' names without the layer's number, "blocks.mlp.up.kernel".
        zero: what the devices of axis dp shard.
    """
    # Else the batch would be replicated, and every rank compute all of it.
    assert tokens[0] % mesh.dp == 0, (tokens, mesh)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = {path_name(_STATE, keys): tuple(leaf.shape) for keys, leaf in leaves}
    is_param = {path: path.startswith(f"{_STATE}.params.") for path in shapes}
    arguments = by_hand(
        mesh,
        parameters={path: shape for path, shape in shapes.items() if is_param[path]},
        optimizer={path: shape for path, shape in shapes.items() if not is_param[path]},
        batch={"tokens": tokens, "targets": targets},
        zero=zero,
        split=split,
    ).arguments
    return Strategy(
        name=_name(mesh, zero),
        mesh=mesh,
        arguments=arguments,
        results={**{path: arguments[path] for path in shapes}, "loss": replicated(0)},
        zero=zero,
    )


def _name(mesh: MeshShape, zero: ZeroLevel) -> str:
    base = f"dp {mesh.dp} x op {mesh.op}"
    return base if zero is ZeroLevel.NONE else f"{base}, ZeRO {zero.value}"
