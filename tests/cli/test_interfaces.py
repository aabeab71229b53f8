"""A run over two hosts that share one network and have others besides, without `run.interface`.

::

    a ── w0 ═══════ w1 ── b        the way; in one case with IPv6 alone
    docker0            docker0     the same address on both, without a cable
    tun0               tun0        point-to-point, up, without a peer
    spare0             spare1      a network of which each host has its own

Hosts are network namespaces, and the stand-in for ssh enters them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxpipe.topo.emulate.commands import run as run_program
from jaxpipe.topo.emulate.engine import EngineKind
from jaxpipe.topo.toml_text import toml_text
from tests.runtime.training import tiny_tree
from tests.topo.emulate.machine import needs_namespaces

REPOSITORY = Path(__file__).parents[2]
SSH = """#!/bin/sh
while :; do case "$1" in -*) shift ;; *) break ;; esac; done
host=$1
shift
exec ip netns exec "$JAXPIPE_TEST_HOSTS-$host" unshare --uts sh -c 'hostname "$0" && eval "$1"' \\
    "$host" "$*"
"""
CLUSTER = """name = "wired"
[[hosts]]
name = "edge-a"
[[hosts]]
name = "edge-b"
[inside_region]
latency_ms = 1
bandwidth_gbps = 1
"""
BOTH = ("edge-a", "edge-b")


class Wired:
    """Two namespaces with a cable between them."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def ip(self, host: str, *words: str) -> None:
        run_program("ip", "-n", f"{self.prefix}-{host}", *words)

    def lay(self, names: tuple[str, str], addresses: tuple[str, str]) -> None:
        """Lay the cable: an interface of each name, with an address each."""
        ends = [f"{self.prefix}{letter}"[-15:] for letter in "xy"]
        run_program("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for host, end, name, address in zip(BOTH, ends, names, addresses, strict=True):
            run_program("ip", "link", "set", end, "netns", f"{self.prefix}-{host}", "name", name)
            flags = ("nodad",) if ":" in address else ()
            self.ip(host, "address", "add", address, "dev", name, *flags)
            self.ip(host, "link", "set", name, "up")
        hosts = [f"{a.partition('/')[0]} {host}\n" for host, a in zip(BOTH, addresses, strict=True)]
        for host in BOTH:
            folder = Path(f"/etc/netns/{self.prefix}-{host}")
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(hosts))

    def add_dead_ends(self) -> None:
        """Add the interfaces that most hosts have, and that lead to no other."""
        for number, host in enumerate(BOTH):
            self.ip(host, "link", "add", "docker0", "type", "bridge")
            self.ip(host, "address", "add", "172.17.0.1/16", "dev", "docker0")
            self.ip(host, "link", "set", "docker0", "up")
            self.ip(host, "tuntap", "add", "tun0", "mode", "tun")
            self.ip(host, "address", "add", "10.8.0.2", "peer", "10.8.0.1", "dev", "tun0")
            self.ip(host, "link", "set", "tun0", "up")
            spare = f"spare{number}"
            self.ip(host, "link", "add", spare, "type", "bridge")
            self.ip(host, "address", "add", f"192.168.5.{1 + number}/24", "dev", spare)
            self.ip(host, "link", "set", spare, "up")


@pytest.fixture
def wired() -> Iterator[Wired]:
    needs_namespaces(EngineKind.UNSHAPED)
    made = Wired(f"wt{os.getpid()}")
    names = [f"{made.prefix}-{host}" for host in BOTH]
    try:
        for name, host in zip(names, BOTH, strict=True):
            run_program("ip", "netns", "add", name)
            made.ip(host, "link", "set", "lo", "up")
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
            for file in Path(f"/etc/netns/{name}").glob("*"):
                file.unlink()
            Path(f"/etc/netns/{name}").rmdir()


def run_wired(wired: Wired, tmp_path: Path, dataset: Path, *words: str) -> tuple[int, str]:
    """Run two ranks, one on each host, and return the exit code and what was said."""
    (tmp_path / "wired.toml").write_text(CLUSTER)
    agent, config = tmp_path / "ssh", tmp_path / "config.toml"
    agent.write_text(SSH)
    agent.chmod(0o755)
    devices = [f"{host}:0" for host in BOTH]
    plan = {"cluster": str(tmp_path / "wired.toml"), "devices": devices, "replicas": 1}
    tree = tiny_tree(tmp_path / "run", dataset, plan=plan, train={"steps": 2})
    config.write_text(toml_text(tree))
    name = f"{wired.prefix}-{BOTH[0]}"
    inside = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', BOTH[0])
    command = ("run", str(config), "--hosts", "--restarts", "0", *words)
    done = subprocess.run(
        ["ip", "netns", "exec", name, *inside, sys.executable, "-P", "-m", "jaxpipe", *command],
        cwd=REPOSITORY,
        env=os.environ
        | {
            "PYTHONPATH": str(REPOSITORY),
            "PRTE_MCA_plm_ssh_agent": str(agent),
            "JAXPIPE_TEST_HOSTS": wired.prefix,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.root
@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("names", "addresses", "words", "ways"),
    [
        (("w0", "w1"), ("10.77.0.1/24", "10.77.0.2/24"), (), "10.77.0.0/24"),
        (("w0", "w1"), ("fd77::1/64", "fd77::2/64"), (), "IPv6 alone: fd77::/64"),
        (
            ("w0", "w1"),
            ("10.77.0.1/24", "10.77.0.2/24"),
            ("run.interface=w1,w0",),
            "w1,w0: 10.77.0.0/24",
        ),
        (("w0", "w0"), ("fd77::1/64", "fd77::2/64"), ("run.interface=w0",), "w0"),
    ],
    ids=["by-route", "ipv6-alone", "other-names", "ipv6-named"],
)
def test_ranks_meet_on_the_way_between_their_hosts(
    wired: Wired,
    tmp_path: Path,
    dataset: Path,
    names: tuple[str, str],
    addresses: tuple[str, str],
    words: tuple[str, ...],
    ways: str,
) -> None:
    wired.lay(names, addresses)
    wired.add_dead_ends()
    settings = [word for setting in words for word in ("--set", setting)]
    code, said = run_wired(wired, tmp_path, dataset, *settings)
    assert f"MPI uses {ways}\n" in said, said
    assert code == 0, said
