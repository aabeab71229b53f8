"""SLURM's `topology.conf`: which nodes hang on which switch. A leaf switch is a region.

::

    SwitchName=leaf0 Nodes=gpu[01-04]
    SwitchName=leaf1 Nodes=gpu[05-08]
    SwitchName=spine Switches=leaf[0-1]

Source: SLURM, `topology.conf(5)`, the plugin `topology/tree`.


SLURM's lists of names: `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7 and login.
"""

import re
from itertools import product
from math import prod

from jaxpipe.foreign_file import lines_of
from jaxpipe.topo.names import is_host_name, is_name

MAX_NODES = 2**13
"""As many hosts as a cluster file may have; a range can claim any number in a few characters."""


def parse_topology(text: str) -> dict[str, str]:
    r"""Return the leaf switch of every node, in the order of the file.

    >>> parse_topology("SwitchName=leaf0 Nodes=gpu[1-2]\nSwitchName=spine Switches=leaf0\n")
    {'gpu1': 'leaf0', 'gpu2': 'leaf0'}

    Raises:
        ValueError: a line names no switch, or has neither nodes nor switches; a node hangs on two
            switches; no line has nodes.
    """
    switch_of: dict[str, str] = {}
    for number, line in enumerate(lines_of(text.replace("\\\n", "")), start=1):
        fields = _fields(line)
        if not fields:
            continue
        if "switchname" not in fields or not fields.keys() & {"nodes", "switches"}:
            raise ValueError(
                f"line {number} of the topology must be `SwitchName=... Nodes=...` or "
                "`SwitchName=... Switches=...`; it is something else"
            )
        for node in expand(fields.get("nodes", "")):
            if not (is_host_name(node) and is_name(fields["switchname"])):
                raise ValueError(
                    f"line {number} of the topology must name a switch and nodes with letters, "
                    "digits, `.`, `_` and `-`"
                )
            if node in switch_of:
                raise ValueError(
                    f"node {node!r} hangs on {switch_of[node]!r} and on {fields['switchname']!r}: "
                    f"a node has one leaf switch"
                )
            switch_of[node] = fields["switchname"]
    if not switch_of:
        raise ValueError("cannot parse the topology: no line has `Nodes`; give the leaf switches")
    return switch_of


def _fields(line: str) -> dict[str, str]:
    """Return a line's `Key=value` words by their keys in lower case: SLURM reads either case."""
    words = (word.partition("=") for word in line.partition("#")[0].split())
    return {key.lower(): value for key, _, value in words}


# Not inside of brackets: no "]" follows before the next "[".
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the names; ranges keep their leading zeros.

    >>> expand("gpu[08-10],login")
    ('gpu08', 'gpu09', 'gpu10', 'login')
    >>> expand("r[1-2]n[3,5]")
    ('r1n3', 'r1n5', 'r2n3', 'r2n5')

    Raises:
        ValueError: a bracket holds something else than numbers and ranges.
    """
    names: list[str] = []
    for word in filter(None, _COMMA_OUTSIDE_BRACKETS.split(text.strip())):
        parts = _BRACKETS.split(word)  # text, inside of a bracket, text, ..., text
        choices = [_numbers(part) if inside % 2 else (part,) for inside, part in enumerate(parts)]
        _check_count(len(names) + prod(map(len, choices)))
        names.extend("".join(combination) for combination in product(*choices))
    return tuple(names)


def _numbers(ranges: str) -> tuple[str, ...]:
    numbers: list[str] = []
    for word in ranges.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise ValueError("cannot parse the nodes: brackets must have ranges such as [01-04,7]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"range {word.strip()} of nodes must run forwards")
        _check_count(int(last) - int(first) + 1)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return tuple(numbers)


def _check_count(count: int) -> None:
    if count > MAX_NODES:
        raise ValueError(
            f"cannot parse a list of {count:,} nodes: it can have at most {MAX_NODES:,} names"
        )
