"""SLURM's topology.conf."""

import pytest

from jaxpipe.topo.slurm import parse_topology

TREE = """
# two racks
SwitchName=leaf0 Nodes=gpu[01-02] LinkSpeed=100
switchname=leaf1 nodes=gpu03,\\
gpu04   # the new ones

SwitchName=spine Switches=leaf[0-1]
"""


def test_nodes_hang_on_leaves():
    assert parse_topology(TREE) == {
        "gpu01": "leaf0",
        "gpu02": "leaf0",
        "gpu03": "leaf1",
        "gpu04": "leaf1",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no line has `Nodes`"),
        ("SwitchName=top Switches=leaf0", "no line has `Nodes`"),
        ("Nodes=gpu01", "line 1 of the topology must be"),
        ("\nSwitchName=leaf0", "line 2 of the topology must be"),
        (
            "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]",
            "node 'n1' hangs on 'a' and on 'b'",
        ),
    ],
)
def test_wrong_topologies_are_refused(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        parse_topology(text)
