"""The page on two machines: its messages are those of the code, its cluster has its names."""

import re
from pathlib import Path

from jaxpipe import topo

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/two-machines.md").read_text()


def test_every_message_of_the_page_is_one_of_the_code() -> None:
    rows = re.findall(r"^\| (`+) ?(.+?) ?\1 \|", PAGE, re.M)
    messages = [part.strip() for _, text in rows for part in text.split("...")]
    assert len(messages) >= 4
    folders = (ROOT / "jaxpipe/run", ROOT / "jaxpipe/doctor")
    files = (path.read_text() for folder in folders for path in folder.rglob("*.py"))
    # Messages stand in several pieces, and values in their places.
    source = re.sub(r'"\s*\n\s*f?"', "", "\n".join(files))
    assert [message for message in messages if message not in source] == []


def test_the_cluster_has_the_hosts_of_the_page() -> None:
    cluster = topo.load(str(ROOT / "docs/examples/two-machines.toml"))
    assert [host.name for host in cluster.hosts] == ["alice", "bob"]
    assert len(cluster) == 4
