"""Plan files of formats 1 to 6, rewritten as format 7.

A cell of a custom schedule is `F3.1` up to format 6, with the chunk that a rank has in place of the
stage: `3F3` on rank 1 of 2. Formats 1 to 5 have one array for all replicas where format 6 has a
table for each of them::

    format = 3                           format = 6
    num_microbatches = [6, 2]
    cut = [[3, 2], [5]]                  [[replica]]
    placement = [                        num_microbatches = 6
        [[0, 1], 2],                     cut = [3, 2]
        [3],                             placement = [[0, 1], 2]
    ]
                                         [[replica]]
                                         ...

A field of formats 1 to 5 has one value for all replicas, or an array with one for each.
"""

import re
from typing import Any

from jaxpipe.errors import PlanError

FORMAT = 7
"""The format that is written."""
_WITH_REPLICAS = 6
_OLD_CELL = re.compile(r"([FBIW]\d{1,9})(?:\.(\d{1,9}))?")
_NUMBERS = ("microbatch", "num_microbatches")
_ROWS = ("cut", "warmup", "codecs", "data_parts")


def upgraded(tree: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Return the tree of a plan file as one of format 7; errors name the `source`.

    Raises:
        PlanError: the format is unknown, or an array has not one value for each replica.
    """
    version = tree.get("format")
    if isinstance(version, bool) or version not in range(1, FORMAT + 1):
        raise PlanError(
            f"{source} has `format` {version!r:.80}, this version of jaxpipe reads 1 to {FORMAT}; "
            "plan again"
        )
    if version == FORMAT:
        return tree
    tree = {**tree, "format": FORMAT, "schedule": _with_stages(tree.get("schedule"))}
    if version == _WITH_REPLICAS:
        return tree
    placement = _array(tree, "placement", source=source)
    replicas: list[dict[str, Any]] = [{"placement": row} for row in placement]
    left = {key: value for key, value in tree.items() if key not in ("format", "placement")}
    names = left.pop("devices", None)
    if names is not None:
        _give(replicas, "devices", names, source=source)
    for key in (*_NUMBERS, *_ROWS):
        if _has_own(key, left.get(key)):
            _give(replicas, key, left.pop(key), source=source)
    return {**left, "format": FORMAT, "replica": replicas}


def _with_stages(schedule: Any) -> Any:
    """Return the rows of a custom schedule with the stage in each cell; other values stay."""
    if not isinstance(schedule, list):
        return schedule

    def with_stage(rank: int, cell: str) -> str:
        match = _OLD_CELL.fullmatch(cell.strip())
        if match is None:
            return cell  # the reader of schedules refuses it
        compute, chunk = match.groups()
        return f"{int(chunk or 0) * len(schedule) + rank}{compute}"

    return [
        ",".join(with_stage(rank, cell) for cell in row.split(",")) if isinstance(row, str) else row
        for rank, row in enumerate(schedule)
    ]


def _has_own(key: str, value: Any) -> bool:
    """Return whether a value is an array with one entry for each replica."""
    if not isinstance(value, list):
        return False
    return key in _NUMBERS or any(isinstance(entry, list) for entry in value)


def _give(replicas: list[dict[str, Any]], key: str, values: Any, *, source: str) -> None:
    """Give each replica its own value of an array."""
    is_row = key not in _NUMBERS
    fits = isinstance(values, list) and len(values) == len(replicas)
    if not fits or (is_row and not all(isinstance(value, list) for value in values)):
        raise PlanError(
            f"{source} is not a plan: `{key}` is {values!r:.80}; give one for all "
            f"{len(replicas)} replicas of `placement`, or one for each"
        )
    for replica, value in zip(replicas, values, strict=True):
        replica[key] = value


def _array(tree: dict[str, Any], key: str, *, source: str) -> list[Any]:
    value = tree.get(key)
    if not isinstance(value, list):
        raise PlanError(f"{source} is not a plan: `{key}` must be an array, is {value!r:.80}")
    return value
