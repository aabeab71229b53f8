"""Probe emulated clusters from inside: measured and specified latency and bandwidth per link."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.emulation.commands import emulate
from jaxpipe import topo
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.topo import with_slower_links

_NEAR, _NEAR_S = 0.1, 0.5e-3


def probe(case: Mapping[str, Any], mpirun: str | None) -> list[dict[str, Any]]:
    """Return a row per ordered pair of devices on different hosts.

    Raises:
        RuntimeError: the probe failed.
    """
    cluster = with_slower_links(topo.load(case["cluster"]), scale=case["scale"])
    start = launch_command(mpirun or find_mpirun(), num_ranks=len(cluster))
    python = sys.executable if mpirun is None else str(Path(mpirun).parent / "python")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.toml"
        arguments = ("topo", "probe", "-o", str(out), "--large-mib", str(case["large_mib"]))
        emulate(case["cluster"], case["scale"], [*start, python, "-m", "jaxpipe", *arguments])
        found = topo.load(str(out))
    pairs = [
        (a, b)
        for a in range(len(cluster))
        for b in range(len(cluster))
        if cluster.host_of[a] != cluster.host_of[b]
    ]
    return [_row(case, cluster, found, pair) for pair in pairs]


def _row(
    case: Mapping[str, Any], cluster: topo.Cluster, found: topo.Cluster, pair: tuple[int, int]
) -> dict[str, Any]:
    latency_s, found_s = float(cluster.latency_s[pair]), float(found.latency_s[pair])
    rate, found_rate = (float(each.alone_bytes_per_s[pair]) for each in (cluster, found))
    off_s, off = abs(found_s - latency_s), abs(found_rate / rate - 1)
    return {
        "case": case["name"],
        "scale": case["scale"],
        "link": " -> ".join(cluster.devices[device].host for device in pair),
        "latency_ms": f"{1e3 * latency_s:.2f}",
        "found_ms_emulated": f"{1e3 * found_s:.2f}",
        "gbps": f"{8e-9 * rate:.4f}",
        "found_gbps_emulated": f"{8e-9 * found_rate:.4f}",
        "ratio": f"{found_rate / rate:.3f}",
        "within_aim": off_s <= max(_NEAR * latency_s, _NEAR_S) and off <= _NEAR,
    }
