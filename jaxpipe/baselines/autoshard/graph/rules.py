"""The sharding rule of each JAX primitive; unknown ones are computed whole by every device."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from jaxpipe.baselines.autoshard.graph.elementwise import ELEMENTWISE
from jaxpipe.baselines.autoshard.graph.gather_scatter import gather_rule, scatter_rule
from jaxpipe.baselines.autoshard.graph.reshape import reshape_rule
from jaxpipe.baselines.autoshard.graph.rule import EquationForm, Rule, named_rule, whole_rule

MakeRule = Callable[[EquationForm], Rule]


def rule_of(primitive: str, form: EquationForm) -> Rule:
    """Return the rule of an equation.

    >>> rule_of("neg", EquationForm(operands=((4, 2),), results=((4, 2),), params={}))
    Rule(sizes=(4, 2), operands=((0, 1),), results=((0, 1),))
    """
    if primitive in ELEMENTWISE:
        return _elementwise(form)
    make = _RULES.get(primitive)
    if make is None:
        return whole_rule(tuple(map(len, form.operands)), tuple(map(len, form.results)))
    return make(form)


def _elementwise(form: EquationForm) -> Rule:
    """Split equal dims together; scalars, and dims of size 1 that are broadcast, are whole."""
    if len(form.results) != 1:  # a barrier passes each of its operands on
        names = tuple(
            tuple((array, dim) for dim in range(len(s))) for array, s in enumerate(form.results)
        )
        sizes = {(a, d): size for a, s in enumerate(form.results) for d, size in enumerate(s)}
        return named_rule(names, names, sizes=sizes)
    (shape,) = form.results
    names = tuple(range(len(shape)))
    # clamp and select_n may take scalars together with arrays: of another rank, without names.
    operands = tuple(
        tuple(
            dim if operand[dim] == shape[dim] else None
            for dim in names
            if len(operand) == len(shape)
        )
        for operand in form.operands
    )
    return named_rule(operands, (names,), sizes=dict(enumerate(shape)))


def _dot_general(form: EquationForm) -> Rule:
    (contract_left, contract_right), (batch_left, batch_right) = form.params["dimension_numbers"]
    left: list[object] = [("m", dim) for dim in range(len(form.operands[0]))]
    right: list[object] = [("n", dim) for dim in range(len(form.operands[1]))]
    for kind, dims, others in (
        ("b", batch_left, batch_right),
        ("k", contract_left, contract_right),
    ):
        for index, (dim, other) in enumerate(zip(dims, others, strict=True)):
            left[dim] = right[other] = (kind, index)
    result = (
        *(("b", index) for index in range(len(batch_left))),
        *(name for name in left if name[0] == "m"),  # type: ignore[index]
        *(name for name in right if name[0] == "n"),  # type: ignore[index]
    )
    sizes = {
        **dict(zip(left, form.operands[0], strict=True)),
        **dict(zip(right, form.operands[1], strict=True)),
    }
    return named_rule((tuple(left), tuple(right)), (result,), sizes=sizes)


def _transpose(form: EquationForm) -> Rule:
    names = tuple(range(len(form.operands[0])))
    return named_rule(
        (names,), (tuple(form.params["permutation"]),), sizes=dict(enumerate(form.operands[0]))
    )


def _broadcast(form: EquationForm) -> Rule:
    """A dim of size 1 that grows is whole before and a factor of its own after."""
    (shape,) = form.results
    names = tuple(
        position if form.operands[0][dim] == shape[position] else None
        for dim, position in enumerate(form.params["broadcast_dimensions"])
    )
    others = ((),) * (len(form.operands) - 1)  # a dynamic shape comes as further, scalar operands
    return named_rule((names, *others), (tuple(range(len(shape))),), sizes=dict(enumerate(shape)))


def _reshape(form: EquationForm) -> Rule:
    return reshape_rule(form.operands[0], form.results[0])


def _reduce(form: EquationForm) -> Rule:
    names = tuple(range(len(form.operands[0])))
    remaining = tuple(dim for dim in names if dim not in form.params["axes"])
    return named_rule((names,), (remaining,), sizes=dict(enumerate(form.operands[0])))


def _reduce_whole(form: EquationForm) -> Rule:
    """As a reduction whose partial results cannot be joined."""
    names = tuple(range(len(form.operands[0])))
    remaining = tuple(dim for dim in names if dim not in form.params["axes"])
    sizes = {dim: form.operands[0][dim] for dim in remaining}
    return named_rule((names,), (remaining,) * len(form.results), sizes=sizes)


def _same_dims(form: EquationForm) -> Rule:
    """Dims that have one size in all arrays are split together; the others are cut, and whole."""
    rank = len(form.results[0])
    sizes = {
        dim: form.results[0][dim]
        for dim in range(rank)
        if all(
            array[dim] == form.results[0][dim]
            for array in (*form.operands, *form.results)
            if len(array) == rank
        )
    }
    names = tuple(range(rank))
    return named_rule(
        tuple(
            names if len(operand) == rank else (None,) * len(operand) for operand in form.operands
        ),
        (names,) * len(form.results),
        sizes=sizes,
    )


def _stack(form: EquationForm) -> Rule:
    names = tuple(range(len(form.operands[0])))
    axis = form.params["axis"] % len(form.results[0])
    result = (*names[:axis], None, *names[axis:])
    return named_rule(
        (names,) * len(form.operands), (result,), sizes=dict(enumerate(form.operands[0]))
    )


def _unstack(form: EquationForm) -> Rule:
    rank = len(form.operands[0])
    axis = form.params["axis"] % rank
    names = tuple(dim for dim in range(rank) if dim != axis)
    sizes = {dim: form.operands[0][dim] for dim in names}
    return named_rule((tuple(range(rank)),), (names,) * len(form.results), sizes=sizes)


def _along(key: str) -> MakeRule:
    """Return what makes the rule of a primitive that needs the dims in `params[key]` whole.

    Without such a parameter it is the last one.
    """

    def make(form: EquationForm) -> Rule:
        value = form.params.get(key, -1)
        names = tuple(range(len(form.results[0])))
        dims = {dim % len(names) for dim in ((value,) if isinstance(value, int) else value)}
        sizes = {dim: form.results[0][dim] for dim in names if dim not in dims}
        return named_rule((names,) * len(form.operands), (names,) * len(form.results), sizes=sizes)

    return make


_RULES: Final[Mapping[str, MakeRule]] = MappingProxyType(
    {
        "dot_general": _dot_general,
        "transpose": _transpose,
        "broadcast_in_dim": _broadcast,
        "reshape": _reshape,
        "squeeze": _reshape,
        "expand_dims": _reshape,
        # Partial maxima and minima are joined by an all-reduce of the same bytes as partial sums.
        **dict.fromkeys(
            ("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"), _reduce
        ),
        # argmax of a shard is a local index, and JAX has no product over devices.
        **dict.fromkeys(("argmax", "argmin", "reduce_prod"), _reduce_whole),
        **dict.fromkeys(
            (
                "slice",
                "pad",
                "concatenate",
                "dynamic_slice",
                "dynamic_update_slice",
                "split",
                "tile",
            ),
            _same_dims,
        ),
        **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along("axis")),
        "stack": _stack,
        "unstack": _unstack,
        "rev": _along("dimensions"),
        "sort": _along("dimension"),
        "top_k": _along("axis"),
        "gather": gather_rule,
        **dict.fromkeys(("scatter-add", "scatter_add"), scatter_rule),
    }
)
