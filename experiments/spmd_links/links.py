"""Starts two ranks, each in a network namespace, over links of a rate.

gloo finds its own address by the host's name, so each rank sees a file of hosts in which that name
is the address of its namespace. MPI is MPICH, which needs no network to start ranks.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

import topo
from experiments.runtime_benchmark.namespaces import MPICH_SETTINGS, enter, joined
from jaxpipe.runtime.launch import MEMORY_SETTINGS
from topo import Cluster

NUM_RANKS = 2
_NAME_THEN_RUN = """
hosts=$(mktemp)
address=$(ip -4 -o addr show dev br0 | tr -s ' ' | cut -d' ' -f4 | cut -d/ -f1)
printf '%s %s\\n127.0.0.1 localhost\\n' "$address" "$(hostname)" > "$hosts"
mount --bind "$hosts" /etc/hosts && rm "$hosts"
exec "$@"
"""


def cluster_name(*, gbps: float) -> str:
    """Return the name of a cluster of two hosts whose link has this rate, and no delay."""
    return f"homogeneous:hosts={NUM_RANKS},delay_ms=0,bandwidth_gbps={gbps}"


def cluster_of(*, gbps: float) -> Cluster:
    """Return that cluster."""
    cluster = topo.load(cluster_name(gbps=gbps))
    return replace(cluster, latency_s=np.zeros_like(cluster.latency_s))


@contextmanager
def linked(cluster: Cluster, *, is_shaped: bool) -> Iterator[None]:
    """Make the namespaces and their links, without token buckets if the links stay as they are.

    Raises:
        CannotMeasureError: there are no rights or no programs to do so.
    """
    with joined(cluster, scale=1.0):
        if not is_shaped:
            for rank in range(NUM_RANKS):
                other = f"to{NUM_RANKS - 1 - rank}"
                command = [*enter(), "tc", "qdisc", "del", "dev", other, "root"]
                subprocess.run(command, check=True, env=os.environ | {"PMI_RANK": str(rank)})
        yield


def run_linked(
    python: Path, arguments: Sequence[str], *, cache: Path, num_ranks: int = NUM_RANKS
) -> None:
    """Run `jaxpipe` with these arguments as ranks of namespaces; `cache` keeps what they compile.

    Raises:
        RuntimeError: a rank failed; it says what they printed.
    """
    start = (str(python.parent / "mpiexec"), "-n", str(num_ranks), "-bind-to", "none")
    named = ("sh", "-c", _NAME_THEN_RUN, "sh")
    done = subprocess.run(
        [*start, *enter(), *named, str(python), "-m", "jaxpipe", *arguments],
        env=os.environ | MEMORY_SETTINGS | MPICH_SETTINGS | cached(cache),
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
    """Return the settings of ranks on CPUs that keep all that they compile in a folder."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
    }
