"""Read the file of a found strategy again, for the graph for which it was searched.

The file names forms, which decide everything: `jaxpipe.baselines.autoshard.duplex.describe` writes
it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from jaxpipe.baselines.autoshard.duplex.decision import Conversion, OperatorDecision, placements
from jaxpipe.baselines.autoshard.duplex.form import Form
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph, LabelledOperator
from jaxpipe.baselines.autoshard.duplex.signature import Signature, signatures
from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import parse_json, read_json, reason_of

FORMAT: Final = 1
MOST_BYTES: Final = 2**28
SEARCH: Final = "duplex"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    name: str
    stage: int
    forms: str
    converted: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file as it is written: what it is for, and a line for each operator."""

    format: int
    search: str
    devices: int
    seconds: float
    memory_bytes: float
    stages: list[dict[str, Any]]
    operators: list[_Operator]


def is_found_file(content: bytes) -> bool:
    """Return whether a file is of this search; the other's has no such mark.

    >>> is_found_file(b'{"search": "duplex"}'), is_found_file(b"[]"), is_found_file(b"?")
    (True, False, False)
    """
    try:
        tree = parse_json(content)
    except ValueError:
        return False
    return isinstance(tree, dict) and tree.get("search") == SEARCH


def read_found(path: Path) -> FoundFile:
    """Return what is in a file.

    Raises:
        PlanError: it cannot be read, or is not of this search.
    """
    try:
        strategy = read_json(path, FoundFile, most_bytes=MOST_BYTES)
    except OSError as error:
        raise PlanError(f"cannot read the strategy {path}: {reason_of(error)}") from error
    except ValueError as error:
        raise PlanError(f"{path} is no strategy of `jaxpipe autoshard duplex`: {error}") from error
    if strategy.format != FORMAT or strategy.search != SEARCH or strategy.devices < 1:
        raise PlanError(
            f"{path} must have `format` {FORMAT}, `search` {SEARCH!r} and a device, has "
            f"{strategy.format}, {strategy.search!r} and {strategy.devices}; search again"
        )
    return strategy


def decisions_for(graph: LabelledGraph, strategy: FoundFile) -> tuple[OperatorDecision, ...]:
    """Return the decisions of a file for a graph.

    Raises:
        PlanError: the file is for another graph, or has a form that an operator cannot have.
    """
    names = [node.name for node in graph.operators]
    written = [entry.name for entry in strategy.operators]
    if names != written:
        raise PlanError(
            "`--model` and `--layers` must be those of the search: the strategy has "
            f"{len(written)} operators, the model {len(names)}, and the first that differs is "
            f"{_first(names, written)!r}; give those of the search, or search again"
        )
    stage, decisions = -1, []
    for operator, entry in zip(graph.operators, strategy.operators, strict=True):
        decisions.append(
            _decision(operator, entry, graph, strategy.devices, starts=entry.stage > stage)
        )
        stage = entry.stage
    return tuple(decisions)


def _first(names: Sequence[str], written: Sequence[str]) -> str:
    for name, other in zip(names, written, strict=False):
        if name != other:
            return other
    return [*written, *names][min(len(names), len(written))]


def _decision(
    operator: LabelledOperator,
    entry: _Operator,
    graph: LabelledGraph,
    num_devices: int,
    *,
    starts: bool,
) -> OperatorDecision:
    signature = _signature(operator, entry, graph, num_devices)
    ways = {
        tuple(str(placed.stored) for placed in way): way
        for way in placements(operator, signature, graph, num_devices=num_devices)
    }
    stored = tuple(entry.parameters.values())
    if stored not in ways:
        raise PlanError(
            f"{operator.name}: `parameters` {entry.parameters} cannot be stored so for "
            f"{entry.forms}; search again"
        )
    return OperatorDecision(
        signature=signature,
        conversions=tuple(_conversions(operator, entry)),
        placements=ways[stored],
        starts_stage=starts,
    )


def _signature(
    operator: LabelledOperator, entry: _Operator, graph: LabelledGraph, num_devices: int
) -> Signature:
    known = {str(s): s for s in signatures(operator, graph.sizes, num_devices=num_devices)}
    if entry.forms not in known:
        raise PlanError(
            f"{operator.name} cannot have the `forms` {entry.forms!r} on {num_devices} devices; it "
            f"can have {', '.join(known)}: search again for this `--model` and `--batch`"
        )
    return known[entry.forms]


def _conversions(operator: LabelledOperator, entry: _Operator) -> Iterator[Conversion]:
    labels = dict(zip(operator.inputs, operator.operands, strict=True))
    for tensor, text in entry.converted.items():
        source, _, target = text.partition("->")
        if tensor not in labels:
            raise PlanError(f"{operator.name} does not read {tensor!r}; search again")
        yield Conversion(tensor, labels[tensor], _form(source), _form(target))


def _form(text: str) -> Form:
    """Parse a form.

    >>> [str(_form(text)) for text in ("F", "P", "S2")]
    ['F', 'P', 'S2']
    """
    if text in ("F", "P"):
        return Form(partial=text == "P")
    # Bounded: Python refuses to convert 4,300 digits.
    if text[:1] != "S" or not text[1:].isdecimal() or len(text) > 3:
        raise PlanError(
            f"cannot parse the form {text[:40]!r}: it must be F, P, or S and a dim; search again"
        )
    return Form(dim=int(text[1:]))
