"""Float32 copies of 16-bit parameters, which the optimizer updates (master weights).

::

    gradients (16 bits) ─► optimizer on float32 ─► master ─► rounded ─► parameters (16 bits)

An update below half an ulp of a parameter changes the master alone, and adds up there; without a
master it is lost. The moments are float32 as well. A master is a part of the optimizer's state, so
checkpoints, shards and meshes treat it as they treat moments.

Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.1.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig


class MasterState(NamedTuple):
    """The master weights, and the state of the optimizer that updates them."""

    master: Parameters
    inner: optax.OptState


def has_masters(config: OptimizerConfig, params: Any) -> bool:
    """Return whether parameters, or their shapes, have master weights: those of 16 bits."""
    return any(config.has_master_weights(str(leaf.dtype)) for leaf in jax.tree.leaves(params))


def with_master_weights(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the optimizer that updates float32 copies of the parameters; see `updated`."""

    def init(params: Any) -> MasterState:
        master = _in_float32(params)
        return MasterState(master=master, inner=inner.init(master))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MasterState]:
        del params  # they are the rounded master
        changes, moments = inner.update(_in_float32(updates), state.inner, state.master)
        master = jax.tree.map(jnp.add, state.master, changes)
        return changes, MasterState(master=master, inner=moments)

    return optax.GradientTransformation(init, update)


def updated(params: Parameters, changes: optax.Updates, state: optax.OptState) -> Parameters:
    """Return the parameters after an update, given its changes and the state that it returned."""
    if isinstance(state, MasterState):
        return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), state.master, params)
    return jax.tree.map(jnp.add, params, changes)


def from_params(state: optax.OptState, params: Callable[[], Parameters]) -> optax.OptState:
    """Return a fresh state whose master weights are these parameters, if it has some."""
    if not isinstance(state, MasterState):
        return state
    return state._replace(master=_in_float32(params()))


def _in_float32(tree: Any) -> Any:
    # A copy also of what is float32: parameters and state are donated apart.
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=jnp.float32), tree)
