"""The moments in the state of any optimizer, as trees with the names of the parameters.

optax nests states as it nests transformations. Whatever the nesting, a moment is a field `mu`, `nu`
or `trace` that holds a tree like the parameters; of Adafactor `v_row`, `v_col` and `v`, whose
leaves have the names of the parameters and smaller shapes. Muon has two states, with disjoint
leaves, for the matrices of layers and for all else; each leaf of a moment is then in one of them::

    partition ─┬─ muon: mu {blocks: kernels}        ┐
               └─ adam: mu {embed, norms, head}     ├──►  mu {all},  nu {embed, norms, head}
                        nu {embed, norms, head}     ┘
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import optax

from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer_config import MOMENTS

_COUNT: Final = "count"


def moments_of(state: optax.OptState) -> dict[str, Parameters]:
    """Return each moment of a state by its name.

    >>> import jax.numpy as jnp
    >>> state = optax.adam(0.1).init({"head": {"scale": jnp.ones(2)}})
    >>> sorted(moments_of(state)), moments_of(state)["mu"]["head"]["scale"].tolist()
    (['mu', 'nu'], [0.0, 0.0])
    """
    moments: dict[str, Parameters] = {}

    def collect(name: str, value: Any) -> Any:
        if name != _COUNT:
            moments[name] = _merged(moments.get(name, {}), _pruned(value))
        return value

    _visited(state, collect)
    return moments


def with_moments(
    state: optax.OptState, moments: Mapping[str, Parameters], *, num_updates: int
) -> optax.OptState:
    """Return a state with these moments, after `num_updates` updates: the inverse of `moments_of`.

    The number is not saved: schedules and bias corrections follow from it.
    """

    def replaced(name: str, value: Any) -> Any:
        return np.int32(num_updates) if name == _COUNT else _filled(value, moments[name])

    return _visited(state, replaced)


def _visited(state: Any, visit: Callable[[str, Any], Any]) -> Any:
    """Return a state in which `visit` has replaced every moment and every count."""
    if names := getattr(state, "_fields", None):  # a named tuple with fields
        fields = zip(names, state, strict=True)
        return type(state)(*(_field(name, value, visit) for name, value in fields))
    if type(state) is tuple:
        return tuple(_visited(part, visit) for part in state)
    if isinstance(state, dict):
        return {key: _visited(part, visit) for key, part in state.items()}
    return state


def _field(name: str, value: Any, visit: Callable[[str, Any], Any]) -> Any:
    is_moment = name in MOMENTS and isinstance(value, dict)
    return visit(name, value) if is_moment or name == _COUNT else _visited(value, visit)


def _pruned(tree: Any) -> Any:
    """Return a tree without the leaves that another state has, and without empty parts."""
    if not isinstance(tree, dict):
        return tree
    remaining = {key: _pruned(subtree) for key, subtree in tree.items() if not _is_masked(subtree)}
    return {
        key: subtree
        for key, subtree in remaining.items()
        if not (isinstance(subtree, dict) and not subtree)
    }


def _merged(one: Parameters, other: Parameters) -> Parameters:
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merged(merged[key], value) if key in merged else value
    return merged


def _filled(like: Any, tree: Any) -> Any:
    if not isinstance(like, dict):
        return like if _is_masked(like) else tree
    return {key: _filled(subtree, tree.get(key, {})) for key, subtree in like.items()}


def _is_masked(value: Any) -> bool:
    return isinstance(value, optax.MaskedNode)
