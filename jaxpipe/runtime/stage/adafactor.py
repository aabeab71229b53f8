"""Adafactor for the stacked layers of a stage: each layer by itself, from optax's pieces.

Leaves under "blocks" have one more dim at the front, the layer. optax would factor over it, and its
scales are those of whole arrays; here they are those of the tensors of one layer, so that a
partition of the layers changes no update::

    blocks.up  [layer, 256, 704]  ──►  v_row [layer, 256]   v_col [layer, 704]   v [layer, 1]
    blocks.norm     [layer, 256]  ──►  v_row [layer, 1]     v_col [layer, 1]     v [layer, 256]
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

SMALLEST_FACTORED = 128
"""Matrices with fewer rows or columns keep their whole second moment, as in optax."""

# None is no array: for `vmap` it says that all layers have one count.
_LAYERWISE = optax.FactoredState(count=cast(Any, None), v_row=0, v_col=0, v=0)
"""The dims of the layers in a state."""


def adafactor_directions() -> optax.GradientTransformation:
    """Return the directions of Adafactor, without a first moment, before decay and learning rate.

    An update has at most the root mean square of its tensor, and of 1e-3 for smaller tensors.
    Source: Shazeer and Stern 2018, algorithms 4 to 6, with the decay rate 1 - t^-0.8.
    """
    return optax.chain(
        _factored(),
        _stateless(optax.clip_by_block_rms(1.0)),
        _stateless(optax.scale_by_param_block_rms()),
    )


def _factored() -> optax.GradientTransformation:
    inner = optax.scale_by_factored_rms(min_dim_size_to_factor=SMALLEST_FACTORED)

    # optax types a state as any tree of arrays.
    def init(params: Any) -> Any:
        states = {
            part: _on(part, leaves, inner.init, out_axes=_LAYERWISE)(leaves)
            for part, leaves in params.items()
        }
        return _joined(jnp.zeros([], jnp.int32), states)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        assert params is not None
        moved, states = {}, {}
        for part, leaves in updates.items():
            factored = optax.FactoredState(
                state.count, state.v_row[part], state.v_col[part], state.v[part]
            )
            call = _on(
                part, leaves, inner.update, in_axes=(0, _LAYERWISE, 0), out_axes=(0, _LAYERWISE)
            )
            moved[part], states[part] = call(leaves, factored, params[part])
        return moved, _joined(state.count + 1, states)

    return optax.GradientTransformation(init, update)


def _joined(count: jax.Array, states: Mapping[str, optax.FactoredState]) -> optax.FactoredState:
    return optax.FactoredState(
        count=count,
        v_row={part: state.v_row for part, state in states.items()},
        v_col={part: state.v_col for part, state in states.items()},
        v={part: state.v for part, state in states.items()},
    )


def _stateless(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return a transformation without a state that treats each layer as a tensor of its own."""

    def one(updates: Any, params: Any) -> Any:
        return inner.update(updates, inner.init(params), params)[0]

    def init(params: Any) -> Any:  # noqa: ARG001
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        moved = {
            part: _on(part, leaves, one)(leaves, params[part]) for part, leaves in updates.items()
        }
        return moved, state

    return optax.GradientTransformation(init, update)


def _on(part: str, leaves: Any, function: Callable, **axes: Any) -> Callable:
    """Return `function` over the layers of blocks, or as it is for any other part."""
    return jax.vmap(function, **axes) if part == "blocks" and jax.tree.leaves(leaves) else function
