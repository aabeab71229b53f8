"""The forms of a tensor on n devices, and the collectives that convert one form into another.

A tensor is split along one of its dims at most::

    full       every device holds all of it                         F
    sharded    device i holds the i-th part along a dim             S0, S1, ...
    partial    the tensor is the sum of what the devices hold       P

    from      to        forward          backward
    S(i)      F         all-gather       reduce-scatter
    S(i)      S(j)      all-to-all       all-to-all
    P         F         all-reduce       all-reduce
    P         S(i)      reduce-scatter   all-gather
    F         S(i)      local slice      local padding with zeros

The gradient of a tensor has the dual form: that of a full tensor is partial, since each device adds
what its own copy contributes; that of a partial tensor is full; that of a sharded one is sharded
alike. So the backward of a conversion is the conversion between the duals, the other way round.

Source: Zhang et al., "HiDup", SoCC 2022, section 4.
"""

from dataclasses import dataclass

from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, order=True)
class Form:
    """How the devices hold a tensor: sharded along `dim`, the summands of it, or all of it.

    >>> str(Form()), str(Form(dim=1)), str(Form(partial=True))
    ('F', 'S1', 'P')

    Raises:
        PlanError: the form is both sharded and partial.
    """

    dim: int = -1
    partial: bool = False

    def __post_init__(self) -> None:
        if self.partial and self.dim >= 0:
            raise PlanError(
                f"`dim` ({self.dim}) and `partial` exclude each other: a form is sharded or "
                "partial; leave one out"
            )

    def __str__(self) -> str:
        if self.partial:
            return "P"
        return "F" if self.dim < 0 else f"S{self.dim}"


FULL = Form()
PARTIAL = Form(partial=True)


def sharded(dim: int) -> Form:
    """Return the form that is sharded along a dim."""
    return Form(dim=dim)


def dual(form: Form) -> Form:
    """Return the form of the gradient of a tensor in this form."""
    if form == FULL:
        return PARTIAL
    return FULL if form == PARTIAL else form


def can_convert(source: Form, target: Form) -> bool:
    """Return whether there is a conversion: any form becomes another one, but none becomes P."""
    return source == target or not target.partial


def conversion(source: Form, target: Form) -> CollectiveKind | None:
    """Return the collective that converts one form into another; None if it is local.

    >>> conversion(sharded(0), FULL).value, conversion(FULL, sharded(0))
    ('all-gather', None)

    Raises:
        PlanError: nothing becomes partial.
    """
    if not can_convert(source, target):
        raise PlanError(
            f"cannot convert {source} to {target}: no conversion makes a tensor partial"
        )
    if source in (target, FULL):
        return None
    if source == PARTIAL:
        full, part = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER
    else:
        full, part = CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL
    return full if target == FULL else part


def backward_conversion(source: Form, target: Form) -> CollectiveKind | None:
    """Return the collective of the backward of a conversion, which has the same bytes.

    >>> backward_conversion(sharded(0), FULL).value
    'reduce-scatter'
    """
    # Of a slice this is S(i) -> P: padding with zeros, which is local.
    if source == FULL:
        return None
    return conversion(dual(target), dual(source))
