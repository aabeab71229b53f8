"""Tables of tokens and positions split by columns, where Megatron splits that of tokens by rows.

::

    rows      each device looks up what it has       ──► all-reduce of the sum
    columns   each device looks up a part of each    ──► all-gather of each ──► sum

The published float32 rows of Alpa on (1, 4) have the collectives of the second.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from jaxpipe.baselines.autoshard.spmd.program import trace_program
from jaxpipe.baselines.autoshard.strategy import OperatorChoice, parse_choice

SPLIT_BY_COLUMNS: Final[Mapping[str, int]] = MappingProxyType(
    {"embed.tokens": -1, "embed.positions": -1}
)
"""The dims of the tables, in place of Megatron's."""


def whole_embeddings(
    step: Callable[..., Any], arguments: Sequence[Any]
) -> dict[int, OperatorChoice]:
    """Return the choice that adds the vectors of tokens and positions whole, by its operator.

    If both tables are split by columns, each is then gathered by itself, and the split spreads no
    further. The batch is whole: it is for meshes of one device in dp.
    """
    program = trace_program(step, *arguments)
    makers = {
        output: operator.name for operator in program.operators for output in operator.outputs
    }
    first = next(
        operator
        for operator in program.operators
        if operator.name == "add"
        and [makers.get(array) for array in operator.inputs] == ["dot_general"] * 2
    )
    assert first.index is not None, first
    return {first.index: parse_choice("RRR,RRR->RRR")}
