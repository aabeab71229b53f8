"""SLURM's `topology.conf`: which nodes hang on which switch. A leaf switch is a region.

::

    SwitchName=leaf0 Nodes=gpu[01-04]
    SwitchName=leaf1 Nodes=gpu[05-08]
    SwitchName=spine Switches=leaf[0-1]

Source: SLURM, `topology.conf(5)`, the plugin `topology/tree`.
"""

from topo.hostlist import expand


def parse_topology(text: str) -> dict[str, str]:
    r"""Return the leaf switch of every node, in the order of the file.

    >>> parse_topology("SwitchName=leaf0 Nodes=gpu[1-2]\nSwitchName=spine Switches=leaf0\n")
    {'gpu1': 'leaf0', 'gpu2': 'leaf0'}

    Raises:
        ValueError: a line names no switch, or has neither nodes nor switches; a node hangs on two
            switches; no line has nodes.
    """
    switch_of: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", "").splitlines(), start=1):
        fields = _fields(line)
        if not fields:
            continue
        if "switchname" not in fields or not fields.keys() & {"nodes", "switches"}:
            raise ValueError(
                f"line {number} of the topology must be `SwitchName=... Nodes=...` or "
                f"`SwitchName=... Switches=...`, is {line.strip()!r}"
            )
        for node in expand(fields.get("nodes", "")):
            if node in switch_of:
                raise ValueError(
                    f"node {node!r} hangs on {switch_of[node]!r} and on {fields['switchname']!r}: "
                    f"a node has one leaf switch"
                )
            switch_of[node] = fields["switchname"]
    if not switch_of:
        raise ValueError("no line of the topology has `Nodes`: give the leaf switches")
    return switch_of


def _fields(line: str) -> dict[str, str]:
    """Return a line's `Key=value` words by their keys in lower case: SLURM reads either case."""
    words = (word.partition("=") for word in line.partition("#")[0].split())
    return {key.lower(): value for key, _, value in words}
