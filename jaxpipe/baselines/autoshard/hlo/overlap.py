"""Find the collectives of a scheduled HLO module that overlap computation.

In scheduled HLO the instructions stand in the order in which they are issued::

    %start = all-reduce-start(%g)
    %dot   = custom-call(...)          computed during the collective
    %done  = all-reduce-done(%start)

Source: XLA, "Async HLO instructions".
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.*?) (?P<op>[a-z][\w-]*)\("
)
_NAME = re.compile(r"[\w.-]+")
_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COMPUTE = frozenset(("fusion", "dot", "convolution", "custom-call", "reduce", "while", "call"))


class AsyncRole(Enum):
    """The role of an instruction for asynchronous collectives."""

    START = "start"
    DONE = "done"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncCollective:
    """An asynchronous collective, and what is issued between its start and its end.

    Args:
        name: the name of the instruction that starts it.
        kind: its kind, as in `HloKind`.
        num_beside: the number of computing instructions issued during it.
        num_products: how many of these are products of matrices.
    """

    name: str
    kind: str
    num_beside: int = 0
    num_products: int = 0


def async_collectives(text: str) -> tuple[AsyncCollective, ...]:
    """Return the asynchronous collectives of a scheduled module in the order in which they end.

    A start directly followed by its end overlaps nothing: `num_beside` is 0.

    >>> text = '''
    ...   %s = f32[2] all-reduce-start(%a)
    ...   %f = f32[2] fusion(%b), kind=kLoop
    ...   %d = f32[2] all-reduce-done(%s)'''
    >>> async_collectives(text)
    (AsyncCollective(name='s', kind='all-reduce', num_beside=1, num_products=0),)
    """
    return tuple(_paired(text))


def _paired(text: str) -> Iterator[AsyncCollective]:
    under_way: dict[str, AsyncCollective] = {}
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        role = None if match is None else _place(match["op"], line)
        if match is None or role is None:
            continue
        if role is AsyncRole.START:
            kind = _kind(match["op"], line)
            under_way[match["name"]] = AsyncCollective(name=match["name"], kind=kind)
        elif role is AsyncRole.COMPUTE:
            # Every collective in flight overlaps it, not just the last one that started.
            product = int(_is_product(match["op"], line))
            under_way = {
                name: replace(
                    start,
                    num_beside=start.num_beside + 1,
                    num_products=start.num_products + product,
                )
                for name, start in under_way.items()
            }
        elif started := next((n for n in _names(line[match.end() :]) if n in under_way), None):
            yield under_way.pop(started)


def _names(operands: str) -> list[str]:
    # Whole names: XLA numbers copies of an instruction, `s`, `s.1`, `s.1.clone`.
    return _NAME.findall(operands)


def _kind(op: str, line: str) -> str:
    # Of a wrapped one the instruction says nothing; its computation is named after the kind.
    named = op if op.startswith(_KINDS) else line.partition("calls=")[2] or line
    return next(kind for kind in _KINDS if kind in named)


def _is_product(op: str, line: str) -> bool:
    # As it was written, by a library, or by Triton; an operand may be named after a product too.
    called = line.partition("custom_call_target=")[2] + line.partition("calls=")[2]
    return op == "dot" or "cublas" in called or "gemm" in called


def _place(op: str, line: str) -> AsyncRole | None:
    if op in _COMPUTE:
        return AsyncRole.COMPUTE
    # A kind without an instruction of its own is wrapped: `async-start(...), calls=%...`.
    is_collective = op.startswith(_KINDS) or (
        op.startswith("async-") and any(kind in line for kind in _KINDS)
    )
    if is_collective and op.endswith("-start"):
        return AsyncRole.START
    return AsyncRole.DONE if op.endswith("-done") else None
