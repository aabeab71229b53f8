"""Start two ranks, each in a network namespace, over links of a given rate.

gloo resolves its address by the host name, which in a namespace is the address on the shaped link.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from jaxpipe import topo
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS
from jaxpipe.topo import Cluster

NUM_RANKS = 2


def cluster_name(*, gbps: float) -> str:
    """Return the name of a cluster of two hosts, with links of this rate and without delay."""
    return f"homogeneous:hosts={NUM_RANKS},delay_ms=0,bandwidth_gbps={gbps}"


def cluster_of(*, gbps: float) -> Cluster:
    """Return that cluster."""
    cluster = topo.load(cluster_name(gbps=gbps))
    return replace(cluster, latency_s=np.zeros_like(cluster.latency_s))


def run_linked(
    python: Path,
    arguments: Sequence[str],
    *,
    links: Mapping[str, str],
    cache: Path,
    num_ranks: int = NUM_RANKS,
) -> None:
    """Run `jaxpipe` with these arguments as ranks in namespaces.

    `links` are the environment variables that place the ranks; `cache` stores compiled programs.

    Raises:
        RuntimeError: a rank failed; the message has the output.
    """
    start = (str(python.parent / "mpiexec"), "-n", str(num_ranks), "-bind-to", "none")
    done = subprocess.run(
        [*start, str(python), "-m", "jaxpipe", *arguments],
        env=os.environ | MEMORY_SETTINGS | dict(links) | cached(cache),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise RuntimeError(
            f"{done.args} exited with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def cached(folder: Path) -> dict[str, str]:
    """Return the environment variables of ranks on CPUs that cache all compiled programs."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
    }
