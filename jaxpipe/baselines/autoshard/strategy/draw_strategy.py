"""Draw a strategy and its collectives as text; equal layers share a line.

::

    found on 1 x 4 devices: 129.4 ms a step, at least 129.4 ms
    state.params.blocks.*.down.bias      R      x 4
    state.params.blocks.*.down.kernel    S1R    x 4
    ...

    all-reduce    op   x 20   671.1 MB   91.2 ms
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jaxpipe.baselines.autoshard.strategy.mesh_collective import Collective, collective_s
from jaxpipe.baselines.autoshard.strategy.mesh_shape import MeshShape
from jaxpipe.baselines.autoshard.strategy.strategy import Strategy


def draw_strategy(strategy: Strategy) -> str:
    """Return the strategy as text: a line for each argument, or for all that differ in a number.

    >>> from jaxpipe.baselines.autoshard.strategy import parse_sharding
    >>> arguments = {f"blocks.{layer}.up": parse_sharding("RS1") for layer in range(3)}
    >>> mesh = MeshShape(dp=1, op=4)
    >>> print(draw_strategy(Strategy(name="mine", mesh=mesh, arguments=arguments, results={})))
    mine on 1 x 4 devices
    blocks.*.up   RS1   x 3
    """
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for path, sharding in strategy.arguments.items():
        counts[_pattern(path), str(sharding)] += 1
    rows = [
        (pattern, sharding, f"x {count}" if count > 1 else "")
        for (pattern, sharding), count in counts.items()
    ]
    head = f"{strategy.name} on {strategy.mesh.dp} x {strategy.mesh.op} devices"
    if strategy.seconds is not None:
        head += f": {strategy.seconds * 1e3:.4g} ms a step"
    if strategy.bound_s is not None:
        head += f", at least {strategy.bound_s * 1e3:.4g} ms"
    return "\n".join([head, *_aligned(rows)])


def draw_collectives(
    collectives: Iterable[Collective], mesh: MeshShape, *, launch_s: float = 0.0
) -> str:
    """Return collectives as text: a line for each kind and group of devices.

    >>> from jaxpipe.baselines.autoshard.strategy import Axis, AxisLink, CollectiveKind
    >>> link = AxisLink(bandwidth_bytes_per_s=1e9)
    >>> each = Collective(kind=CollectiveKind.ALL_REDUCE, num_bytes=2000000, axes=(Axis.OP,))
    >>> print(draw_collectives([each] * 3, MeshShape(dp=1, op=2, op_link=link)))
    all-reduce   op   x 3   6 MB   6 ms
    """
    groups: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    for collective in collectives:
        groups[str(collective.kind), "x".join(axis.label for axis in collective.axes)].append(
            collective
        )
    return "\n".join(
        _aligned(
            [
                (
                    kind,
                    axes,
                    f"x {len(members)}",
                    f"{sum(member.num_bytes for member in members) / 1e6:.4g} MB",
                    f"{_total_s(members, mesh, launch_s) * 1e3:.4g} ms",
                )
                for (kind, axes), members in sorted(groups.items())
            ]
        )
    )


def _total_s(members: Sequence[Collective], mesh: MeshShape, launch_s: float) -> float:
    return sum(collective_s(member, mesh, launch_s=launch_s) for member in members)


def _pattern(path: str) -> str:
    # Lookarounds: in "0.1", both numbers need the one dot.
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
