"""Strategies as JSON files: validated, with an exact round trip.

::

    {"format": 1, "name": "found", "zero": "none", "seconds": 0.11, "bound_s": 0.11,
     "mesh": {"dp": 1, "op": 4, "dp_link": {...}, "op_link": {...}},
     "arguments": {"params.blocks.0.mlp.up.kernel": "RS1", ...},
     "results": {"params.blocks.0.mlp.up.kernel": "RS1", ...},
     "operators": {"17": "S0R,RS1->S0S1", "40": "S1R,S1R->RR +1", "41": "S1R,S1R->S1R +1>0"}}

An operator is the text of its choice (`jaxpipe.baselines.autoshard.strategy.choice`); a link
without a `bandwidth_bytes_per_s` has no limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isinf
from pathlib import Path
from typing import TypeVar

import msgspec

from jaxpipe.baselines.autoshard.strategy.choice import parse_choice
from jaxpipe.baselines.autoshard.strategy.mesh_shape import AxisLink, MeshShape
from jaxpipe.baselines.autoshard.strategy.sharding import parse_sharding
from jaxpipe.baselines.autoshard.strategy.strategy import Strategy, ZeroLevel
from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import parse_json, read_regular, reason_of

_FORMAT = 1
_MOST_BYTES = 2**28
_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    latency_s: float
    bandwidth_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    dp: int
    op: int
    dp_link: _Link
    op_link: _Link


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    format: int
    name: str
    mesh: _Mesh
    arguments: dict[str, str]
    results: dict[str, str]
    operators: dict[int, str]
    zero: ZeroLevel = ZeroLevel.NONE
    seconds: float | None = None
    bound_s: float | None = None


def write_strategy(strategy: Strategy, path: Path) -> None:
    """Write a strategy as JSON."""
    path.write_text(strategy_text(strategy), encoding="utf-8")


def strategy_text(strategy: Strategy) -> str:
    """Return the text of a strategy's file."""
    mesh = strategy.mesh
    file = _File(
        format=_FORMAT,
        name=strategy.name,
        mesh=_Mesh(
            dp=mesh.dp, op=mesh.op, dp_link=_to_file(mesh.dp_link), op_link=_to_file(mesh.op_link)
        ),
        arguments={path: str(argument) for path, argument in strategy.arguments.items()},
        results={path: str(result) for path, result in strategy.results.items()},
        operators={number: str(operator) for number, operator in strategy.operators.items()},
        zero=strategy.zero,
        seconds=strategy.seconds,
        bound_s=strategy.bound_s,
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2).decode() + "\n"


def read_strategy(path: Path) -> Strategy:
    """Return the strategy in a file.

    Raises:
        PlanError: the file cannot be read, or is not a strategy.
    """
    try:
        return parse_strategy(read_regular(path, most_bytes=_MOST_BYTES))
    except OSError as error:
        raise PlanError(f"cannot read the strategy {path}: {reason_of(error)}") from error
    except PlanError as error:
        raise PlanError(f"{path} is not a strategy: {error}") from error


def parse_strategy(text: str | bytes) -> Strategy:
    """Return the strategy that the text of a file describes, in UTF-8 if it is bytes.

    Raises:
        PlanError: a field is missing or wrong.
    """
    try:
        file = parse_json(text, _File)
    except ValueError as error:
        raise PlanError(f"{error}; write it again with `write_strategy`") from error
    if file.format != _FORMAT:
        raise PlanError(f"`format` must be {_FORMAT}, is {file.format}; write it again")
    return Strategy(
        name=file.name,
        mesh=MeshShape(
            dp=file.mesh.dp,
            op=file.mesh.op,
            dp_link=_from_file(file.mesh.dp_link),
            op_link=_from_file(file.mesh.op_link),
        ),
        arguments=_parsed("arguments", file.arguments, parse_sharding),
        results=_parsed("results", file.results, parse_sharding),
        operators=_parsed("operators", file.operators, parse_choice),
        zero=file.zero,
        seconds=file.seconds,
        bound_s=file.bound_s,
    )


_Key = TypeVar("_Key", int, str)


def _parsed(
    name: str, texts: Mapping[_Key, str], parse: Callable[[str], _Parsed]
) -> dict[_Key, _Parsed]:
    parsed = {}
    for key, text in texts.items():
        try:
            parsed[key] = parse(text)
        except PlanError as error:
            raise PlanError(f"`{name}.{key}`: {error}") from error
    return parsed


def _to_file(link: AxisLink) -> _Link:
    # JSON has no infinity: no limit is null.
    bandwidth = link.bandwidth_bytes_per_s
    return _Link(
        latency_s=link.latency_s, bandwidth_bytes_per_s=None if isinf(bandwidth) else bandwidth
    )


def _from_file(link: _Link) -> AxisLink:
    bandwidth = link.bandwidth_bytes_per_s
    return AxisLink(
        latency_s=link.latency_s, bandwidth_bytes_per_s=inf if bandwidth is None else bandwidth
    )
