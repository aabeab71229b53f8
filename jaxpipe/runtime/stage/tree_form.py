"""The structure of what a function of a stage returns, as plain data: it is kept without pickle.

A leaf is its number; every other node a list of its kind, its name or keys, and its children.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import jax
import optax
import optax.contrib

from jaxpipe.runtime.stage.master_weights import MasterState
from jaxpipe.runtime.stage.vjp import Residuals
from jaxpipe.schedule import Bucket

TreeForm: TypeAlias = int | list | None

_STATES: Final[Mapping[str, type]] = {
    state.__name__: state
    for state in (
        MasterState,
        optax.EmptyState,
        optax.FactoredState,
        optax.MaskedNode,
        optax.MaskedState,
        optax.MultiTransformState,
        optax.ScaleByAdamState,
        optax.ScaleByLionState,
        optax.ScaleByScheduleState,
        optax.TraceState,
        optax.contrib.MuonState,
    )
}
"""The states of all optimizers, by their names."""


class UnknownNodeError(ValueError):
    """A node of a tree that has no form here."""


def form_of(structure: Any) -> TreeForm:
    """Return the form of the structure of a tree.

    Of residuals only the arrays are kept: what their backward was traced from is gone.

    >>> form_of(jax.tree.structure({"a": 1.0, "b": (2.0, None, [])}))
    ['dict', ['a', 'b'], [0, ['tuple', [1, None, ['list', []]]]]]

    Raises:
        UnknownNodeError: the tree has a node of another kind.
    """
    return _form(jax.tree.unflatten(structure, range(structure.num_leaves)))


def tree_of(form: TreeForm) -> Any:
    """Return the tree of a form, whose leaves are their numbers.

    >>> tree_of(["dict", ["a"], [["list", [0, None]]]])
    {'a': [0, None]}

    Raises:
        UnknownNodeError: it is no form.
    """
    match form:
        case None | int():
            return form
        case ["dict", list(keys), list(children)] if len(keys) == len(children):
            return {_key(k): tree_of(child) for k, child in zip(keys, children, strict=True)}
        case ["tuple", list(children)]:
            return tuple(map(tree_of, children))
        case ["list", list(children)]:
            return list(map(tree_of, children))
        case ["residuals", list(children)]:
            return Residuals(saved=tuple(map(tree_of, children)), index=(), structure=None)
        case ["state", str(name), list(children)] if name in _STATES:
            return _STATES[name](*map(tree_of, children))
        case _:
            raise UnknownNodeError(f"no form of a tree: {form!r:.100}")


def _form(tree: Any) -> TreeForm:
    match tree:
        case None | int():
            return tree
        case dict():
            return ["dict", [_key_form(key) for key in tree], [_form(c) for c in tree.values()]]
        case Residuals():
            return ["residuals", [_form(child) for child in tree.saved]]
        case list():
            return ["list", [_form(child) for child in tree]]
        case tuple() if type(tree) is tuple:
            return ["tuple", [_form(child) for child in tree]]
        case tuple() if _STATES.get(type(tree).__name__) is type(tree):
            return ["state", type(tree).__name__, [_form(child) for child in tree]]
        case _:
            raise UnknownNodeError(f"a tree with a {type(tree).__qualname__}")


def _key_form(key: Any) -> Any:
    if type(key) is str:
        return key
    if isinstance(key, Bucket):
        return ["bucket", key.value]
    raise UnknownNodeError(f"a dictionary with the key {key!r:.100}")


def _key(form: Any) -> Any:
    match form:
        case str():
            return form
        case ["bucket", value] if value in {bucket.value for bucket in Bucket}:
            return Bucket(value)
        case _:
            raise UnknownNodeError(f"no form of a key: {form!r:.100}")
