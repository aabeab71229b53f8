"""The steps that bring an array from the layout in which it is stored to all in which it is read.

Each layout is made once, and whatever is sliced from it costs nothing::

    stored S0R, read as RR, RS0 and RS0      gather S0R -> RR, slice RR -> RS0
    stored S0R, read as RS0 twice            all-to-all S0R -> RS0

The search prices these steps and the step runs them: both ask here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxpipe.baselines.autoshard.resharding.layout_graph import Layouts
from jaxpipe.baselines.autoshard.strategy import Collective, Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardingStep:
    """One step of a resharding; a slice has no collective."""

    before: Sharding
    after: Sharding
    collective: Collective | None


def steps_to(
    layouts: Layouts, stored: Sharding, needed: Iterable[Sharding]
) -> tuple[ReshardingStep, ...]:
    """Return the steps from a layout to all others that are needed, in an order that works.

    The wholest layout first: others may then be sliced from it. Each comes from the nearest that is
    there by then.

    >>> from jaxpipe.baselines.autoshard.graph import ArrayType
    >>> from jaxpipe.baselines.autoshard.resharding import LayoutBook
    >>> from jaxpipe.baselines.autoshard.strategy import MeshShape, parse_sharding
    >>> array = ArrayType(shape=(4, 4), dtype="float32", itemsize=4)
    >>> layouts = LayoutBook(mesh=MeshShape(dp=2, op=1)).of(array)
    >>> needed = [parse_sharding(each) for each in ("RS0", "RR", "S0R")]
    >>> for step in steps_to(layouts, parse_sharding("S0R"), needed):
    ...     print(step.before, step.after, step.collective and step.collective.kind.value)
    S0R RR all-gather
    RR RS0 None
    """
    there = [layouts.number[stored]]
    steps: list[ReshardingStep] = []
    # Layouts are numbered from the wholest on.
    for target in sorted({layouts.number[sharding] for sharding in needed}):
        # The first of those that are equally near: the order is the same on all processes.
        layout = min(there, key=lambda layout: layouts.cost[layout, target])
        while layout != target:
            after = int(layouts.after[layout, target])
            if after not in there:
                steps.append(_step(layouts, layout, after))
                there.append(after)
            layout = after
    return tuple(steps)


def _step(layouts: Layouts, before: int, after: int) -> ReshardingStep:
    return ReshardingStep(
        before=layouts.shardings[before],
        after=layouts.shardings[after],
        collective=layouts.collective(before, after),
    )
