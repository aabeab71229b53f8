"""The scripts and drawings that are kept as golden files.

`python -m tests.topo.golden_cases` rewrites the files; read the difference before you commit.
"""

from ipaddress import ip_address
from pathlib import Path

from jaxpipe.topo import Cluster, load
from jaxpipe.topo.draw_cluster import draw_cluster
from jaxpipe.topo.emulate import EngineKind
from jaxpipe.topo.emulate.bridge_engine import shaping_commands
from jaxpipe.topo.emulate.network_spec import network_spec
from jaxpipe.topo.tc import Address, TcScripts, tc_scripts

FOLDER = Path(__file__).parent / "golden"


def addresses(cluster: Cluster, *, prefix: str = "10.0.0.") -> dict[str, Address]:
    """Number the hosts from 1 on."""
    return {
        host.name: ip_address(f"{prefix}{number}")
        for number, host in enumerate(cluster.hosts, start=1)
    }


def scripts(name: str, host: str, *, prefix: str = "10.0.0.") -> TcScripts:
    """Return the scripts of one host of a cluster in the catalogue."""
    cluster = load(name)
    return tc_scripts(cluster, addresses(cluster, prefix=prefix), device="eth0")[host]


def emulated(kind: EngineKind, *, jitter_s: float = 0.0, loss: float = 0.0) -> str:
    """Return the commands of tc that shape one host in its namespace."""
    cluster = load("two-region")
    spec = network_spec(cluster, jitter_s=jitter_s, loss=loss)
    commands = shaping_commands(cluster, spec, kind=kind)["ohio-0"]
    return "".join(f"{' '.join(command)}\n" for command in commands)


def texts() -> dict[str, str]:
    """Return the text of each golden file by its name."""
    asymmetric = "fluidstack-3region:hosts=1"
    drawn = (
        *("case1-datacenter", "case2-spot", "case3-universities", "case4-regional"),
        *("case5-worldwide", "fluidstack-2region", "fluidstack-3region", "laptop", "two-region"),
    )
    return {
        **{f"draw_{name}": draw_cluster(load(name)) + "\n" for name in drawn},
        "tc_two-region_ohio-0_setup": scripts("two-region", "ohio-0").setup,
        "tc_two-region_ohio-0_undo": scripts("two-region", "ohio-0").undo,
        "tc_two-region_ohio-0_ipv6": scripts("two-region", "ohio-0", prefix="fd00::").setup,
        "tc_asymmetric_east-0": scripts(asymmetric, "east-0").setup,
        "tc_asymmetric_west-0": scripts(asymmetric, "west-0").setup,
        "tc_shared_nic_no_delay": scripts("case1-datacenter", "datacenter-3").setup,
        "tc_many_peers": scripts("case2-spot", "datacenter-0").setup,
        "tc_one_host": scripts("laptop", "here-0").setup,
        "emulate_netem_jitter_loss": emulated(EngineKind.NETEM, jitter_s=5e-4, loss=0.001),
        "emulate_htb": emulated(EngineKind.HTB),
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
