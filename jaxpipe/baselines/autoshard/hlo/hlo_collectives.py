"""Parse the collectives of a compiled step from the text of its optimized HLO.

A combined collective, whose operands are a tuple, is one. An asynchronous one is counted where it
starts. What a loop runs many times is counted once, as it stands in the text.

Source: XLA, "Operation semantics"; Zheng et al. 2022, "Alpa", whose benchmark counts likewise.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

ELEMENT_BYTES: Final = MappingProxyType(
    {
        "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2,
        "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
    }
)  # fmt: skip
"""Bytes of an element by XLA's names of formats; formats of 8 bits and floating point have 1."""


class HloKind(StrEnum):
    """The kind of a collective; the values are the names in HLO."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"


SHORT_NAMES: Final = MappingProxyType(
    {
        HloKind.ALL_REDUCE: "allreduce",
        HloKind.ALL_GATHER: "allgather",
        HloKind.REDUCE_SCATTER: "reducescatter",
        HloKind.ALL_TO_ALL: "all2all",
    }
)
"""The names in the published tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCollective:
    """One collective of a compiled step.

    Args:
        kind: what it does.
        num_bytes: the bytes of the whole arrays on one device: before a reduce-scatter, after an
            all-gather, before and after the others.
        group: the number of devices in a group; 0 means all devices.
        dtypes: XLA's names of the formats of its arrays, sorted.
    """

    kind: HloKind
    num_bytes: int
    group: int
    dtypes: tuple[str, ...]

    def ring_bytes(self, num_devices: int) -> float:
        """Return the bytes that each device sends if it is a ring; `num_devices` are all there are.

        Of p that take part each sends 2 (p - 1) / p of an all-reduce, half of that of the others,
        and all of a permute.

        >>> HloCollective(
        ...     kind=HloKind.ALL_REDUCE, num_bytes=100, group=0, dtypes=("f32",)
        ... ).ring_bytes(4)
        150.0
        """
        size = self.group or num_devices
        if self.kind is HloKind.PERMUTE:
            return float(self.num_bytes) if size > 1 else 0.0
        times = 2 if self.kind is HloKind.ALL_REDUCE else 1
        return times * self.num_bytes * (size - 1) / size


_KINDS = "|".join(HloKind)
# The type is matched lazily: that of a tuple contains spaces. `-done` does not match: its
# `-start` has been counted.
_LINE = re.compile(
    rf"^\s*(?:ROOT )?%?[\w.-]+ = (?P<type>.*?) (?P<kind>{_KINDS})(?P<start>-start)?\("
)
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
# [groups, devices of a group]<=[all devices]: XLA's short form of regular groups.
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]")
# In the first line of a module, where they are above 1.
_NUM_DEVICES = re.compile(r"\b(?:replica_count|num_partitions)=(\d+)")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
# A mesh and the axes that a group spans; of an axis that is split in two, `'op':(1)2`, the size is
# that of the part. The compiler of jax 0.11 and newer writes groups in this form.
_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_MESH_AXIS = re.compile(r"'?([\w.-]+)'?=(\d+)")
_GROUP_AXIS = re.compile(r"'?([\w.-]+)'?(?::\(\d+\)(\d+))?")


def collectives(text: str) -> tuple[HloCollective, ...]:
    """Return the collectives in the text of an HLO module, in its order.

    >>> line = "  %r = (f16[8,4]{1,0}, f16[2]{0}) all-reduce(%a, %b), replica_groups=[2,4]<=[8]"
    >>> collectives(line)[0].num_bytes, collectives(line)[0].group
    (68, 4)
    """
    counts = _NUM_DEVICES.findall(text.partition("\n")[0])
    num_devices = math.prod(int(count) for count in counts)
    matches = ((line, _LINE.match(line)) for line in text.splitlines())
    return tuple(_collective(line, match, num_devices) for line, match in matches if match)


def count_collectives(collectives: Iterable[HloCollective]) -> dict[str, int]:
    """Return how many of each kind there are, under the names of the published tables.

    >>> count_collectives(collectives("%r = f32[2] all-gather-start(%a)"))
    {'allreduce': 0, 'allgather': 1, 'reducescatter': 0, 'all2all': 0, 'num_comm': 1}
    """
    kinds = [collective.kind for collective in collectives]
    counts = {short: kinds.count(kind) for kind, short in SHORT_NAMES.items()}
    return counts | {"num_comm": len(kinds)}


def bytes_by_kind(collectives: Iterable[HloCollective]) -> Mapping[HloKind, int]:
    """Return the bytes of all collectives of each kind that there is."""
    totals: dict[HloKind, int] = {}
    for collective in collectives:
        totals[collective.kind] = totals.get(collective.kind, 0) + collective.num_bytes
    return totals


def _collective(line: str, match: re.Match[str], num_devices: int) -> HloCollective:
    kind = HloKind(match["kind"])
    # An all-reduce that starts has the shape of its result alone.
    has_operands = match["start"] and kind is not HloKind.ALL_REDUCE
    shape = _result(match["type"]) if has_operands else match["type"]
    arrays = _ARRAY.findall(shape)
    group = _group(line)
    # Its result is one shard; `num_bytes` counts the input.
    scale = group or num_devices if kind is HloKind.REDUCE_SCATTER else 1
    return HloCollective(
        kind=kind,
        num_bytes=scale * sum(_array_bytes(dtype, dims) for dtype, dims in arrays),
        group=group,
        dtypes=tuple(sorted({dtype for dtype, _ in arrays})),
    )


def _result(shape: str) -> str:
    """Return the second element of a tuple: a start has its operands, its results, and a context.

    >>> _result("((f32[4,8]{1,0}), f32[4,1]{1,0})")
    ' f32[4,1]{1,0}'
    >>> _result("(f32[2], f32[2], u32[], u32[])"), _result("f32[2]")
    (' f32[2]', 'f32[2]')
    """
    depth, ends = 0, []
    for index, letter in enumerate(shape):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter, depth) in ((",", 1), (")", 0)):
            ends.append(index)
    return shape[ends[0] + 1 : ends[1]] if len(ends) > 1 else shape


def _group(line: str) -> int:
    if match := _IOTA_GROUPS.search(line):
        return int(match[2])
    if match := _LISTED_GROUPS.search(line):
        return len(match[1].split(","))
    if match := _MESH_GROUPS.search(line):
        sizes = dict(_MESH_AXIS.findall(match[1]))
        axes = _GROUP_AXIS.findall(match[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return 0


def _array_bytes(dtype: str, dims: str) -> int:
    size = math.prod(int(dim) for dim in dims.split(",") if dim)
    return size * (1 if dtype.startswith("f8") else ELEMENT_BYTES.get(dtype, 0))
