"""The sharding of one operator: of its operands and results, and the reduction of partial sums.

As text: the shardings of the operands, an arrow, those of the results, and for each partial sum a
plus with its axes; ">" and a dim follow where it ends in a reduce-scatter::

    S0R,RS1->S0S1          rows of the one times columns of the other
    RS1,S1R->RR +1         partial sums along op, all-reduced
    RS1,S1R->RS1 +1>1      partial sums along op, scattered over the columns
"""

from dataclasses import dataclass

from jaxpipe.baselines.autoshard.strategy.mesh_shape import Axes, Axis
from jaxpipe.baselines.autoshard.strategy.sharding import Sharding, parse_sharding
from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSum:
    """Axes along which devices hold partial sums of the result, and the collective that ends them.

    By an all-reduce (`scatter_dim` is None: each device gets the whole sum), or by a
    reduce-scatter, after which the axes split the result's dim `scatter_dim`.
    """

    axes: Axes
    scatter_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChoice:
    """The shardings in which an operator reads its operands and leaves its results.

    `results` are the shardings after the partial sums have been reduced. An operand that is stored
    in another sharding is resharded first.
    """

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    partial: tuple[PartialSum, ...] = ()

    @property
    def partial_axes(self) -> tuple[Axis, ...]:
        """All axes along which devices hold partial sums, in the order of the mesh."""
        return tuple(sorted(axis for partial_sum in self.partial for axis in partial_sum.axes))

    def __str__(self) -> str:
        ends = "".join(
            f" +{''.join(str(int(axis)) for axis in partial_sum.axes)}"
            + ("" if partial_sum.scatter_dim is None else f">{partial_sum.scatter_dim}")
            for partial_sum in self.partial
        )
        return f"{','.join(map(str, self.operands))}->{','.join(map(str, self.results))}{ends}"


def parse_choice(text: str) -> OperatorChoice:
    """Parse the text of a choice.

    >>> text = "RS1,S1R->RS1 +1>1"
    >>> str(parse_choice(text)) == text
    True

    Raises:
        PlanError: the text is not a choice.
    """
    shardings, *ends = text.split(" ")
    operands, arrow, results = shardings.partition("->")
    if not arrow:
        raise PlanError(
            f"cannot parse the choice of an operator {text!r}: expected operands->results, for "
            "example 'S0R,RS1->S0S1'"
        )
    return OperatorChoice(
        operands=_listed(operands),
        results=_listed(results),
        partial=tuple(_parse_end(end) for end in ends),
    )


def _listed(text: str) -> tuple[Sharding, ...]:
    return tuple(parse_sharding(word) for word in text.split(",")) if text else ()


def _parse_end(text: str) -> PartialSum:
    axes, scattered, dim = text.removeprefix("+").partition(">")
    # A closed set: `Axis(int(...))` of anything else would raise an error without advice.
    known = axes in ("0", "1", "01", "10") and text.startswith("+")
    # A dim has one digit or two; Python refuses to convert 4,300 digits.
    if not known or (scattered and not (dim.isdecimal() and len(dim) <= 2)):
        raise PlanError(
            f"cannot parse partial sum {text[:40]!r}: expected '+AXES' or '+AXES>DIM', for example "
            "'+1>0'"
        )
    return PartialSum(
        axes=tuple(Axis(int(axis)) for axis in axes), scatter_dim=int(dim) if scattered else None
    )
