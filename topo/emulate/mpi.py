"""Settings and a launch agent that make `mpirun` start its ranks in the namespaces.

Open MPI and MPICH start ranks on other hosts through a program such as ssh; the agent replaces it.
Given a host's name and a command, it enters the namespace of the host, sets the host name, mounts
the host's disks, binds to its processors and runs the command. Files of hosts, one line per rank,
place the ranks; settings make MPI use TCP over the emulated network: hosts on one machine would use
shared memory otherwise.

Sources: PRRTE 3, prte-map(1), "seq"; Open MPI 5, "TCP"; MPICH, "Using the Hydra Process Manager";
UCX and libfabric, "environment variables".
"""

import os
from collections.abc import Sequence
from pathlib import Path

from jaxpipe.topo.cluster import Cluster
from jaxpipe.topo.emulate import addresses
from jaxpipe.topo.emulate.own_disks import MOUNTS
from jaxpipe.topo.emulate.owner import Owner
from jaxpipe.topo.hostfile import mpich_hostfile

MARK = "JAXPIPE_EMULATION"
LINKS = "JAXPIPE_EMULATED_LINKS"
"""Describes the links to the processes inside, for the label of their results."""
"""Environment variable of every process of the command: the name of the emulation."""

# `eval`: mpirun has quoted the command for a remote shell, as it would for ssh.
_AGENT = """#!/bin/sh
# Called by mpirun as: agent [OPTION ...] HOST COMMAND. Runs the command on the emulated host.
while :; do case "$1" in -*) shift ;; *) break ;; esac; done
host=$1
shift
while read -r name number cores; do
    if [ "$name" = "$host" ]; then
        exec ip netns exec "{prefix}$number" taskset -c "$cores" unshare --uts \\
            sh -c 'hostname "$0" && number=$2 && . "{mounts}" && eval "$1"' \\
            "$host" "$*" "$number"
    fi
done < "{table}"
echo "no emulated host is called $host" >&2
exit 1
"""


def mpi_settings(
    owner: Owner, cluster: Cluster, devices: Sequence[int], *, control: int, cores: Sequence[int]
) -> dict[str, str]:
    """Write the agent and the files of hosts; return the environment that makes MPI use them.

    Rank `r` runs on the host of device `devices[r]`; `control` is the number of the network that
    starts ranks, and `cores` are the processors to divide among hosts.

    Raises:
        ValueError: a device does not exist, or occurs twice.
    """
    mpich = mpich_hostfile(cluster, devices)
    names = [cluster.devices[device].host for device in devices]
    folder = owner.folder
    table, agent = folder / "hosts", folder / "agent"
    table.write_text(
        "".join(
            f"{host.name} {number} {','.join(map(str, cpus))}\n"
            for number, (host, cpus) in enumerate(
                zip(
                    cluster.hosts,
                    divided(cores, [h.name for h in cluster.hosts], names),
                    strict=True,
                )
            )
        )
    )
    mounts = folder / MOUNTS
    mounts.touch()  # empty, unless hosts are given disks of their own
    agent.write_text(_AGENT.format(prefix=owner.namespace(""), table=table, mounts=mounts))
    agent.chmod(0o755)
    (folder / "mpich.hosts").write_text(mpich)
    (folder / "openmpi.hosts").write_text("".join(f"{name}\n" for name in names))
    return _environment(owner, agent=agent, control=control)


def _environment(owner: Owner, *, agent: Path, control: int) -> dict[str, str]:
    """Return the settings of Open MPI, MPICH, UCX and libfabric."""
    folder = owner.folder
    return {
        MARK: owner.name,
        "PRTE_MCA_plm_ssh_agent": str(agent),
        "PRTE_MCA_prte_if_include": addresses.control_network(control),
        "PRTE_MCA_prte_default_hostfile": str(folder / "openmpi.hosts"),
        # Rank by rank, line by line of the hostfile; more ranks than cores are intended.
        "PRTE_MCA_rmaps_default_mapping_policy": "seq:oversubscribe",
        # ob1 over tcp: UCX and shared memory would leave the emulated network.
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,tcp",
        "OMPI_MCA_btl_tcp_if_include": addresses.DATA_NETWORK,
        # Ranks share cores: one that spins while it waits would delay the others.
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(agent),
        "HYDRA_HOST_FILE": str(folder / "mpich.hosts"),
        "HYDRA_IFACE": owner.bridge,
        # Ranks of one machine are local to MPICH, and would use shared memory.
        "MPIR_CVAR_NOLOCAL": "1",
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        "UCX_TLS": "tcp,self",
        "UCX_NET_DEVICES": addresses.DEVICE,
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": addresses.DEVICE,
    }


def available_cores() -> list[int]:
    """Return the processors that this process may use."""
    return sorted(os.sched_getaffinity(0))


def divided(
    cores: Sequence[int], hosts: Sequence[str], hosts_of_ranks: Sequence[str]
) -> list[list[int]]:
    """Return the processors of each host: the same number per rank, at least one.

    Hosts without a rank may use all of them.

    >>> divided([0, 1, 2, 3], ["a", "b", "c"], ["a", "b"])
    [[0, 1], [2, 3], [0, 1, 2, 3]]
    >>> divided([0, 1], ["a", "b"], ["a", "b", "a"])
    [[0, 1], [0]]
    """
    # In the order of the hosts: ranks of one host get neighbouring cores.
    num_cores = max(1, len(cores) // len(hosts_of_ranks))
    cores_of: dict[str, set[int]] = {}
    for rank, host in enumerate(sorted(hosts_of_ranks, key=list(hosts).index)):
        mine = [cores[(rank * num_cores + i) % len(cores)] for i in range(num_cores)]
        cores_of.setdefault(host, set()).update(mine)
    return [sorted(cores_of.get(host, cores)) for host in hosts]
