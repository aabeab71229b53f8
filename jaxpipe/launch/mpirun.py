"""A script around Open MPI's mpirun, with the placement of the plan as a rankfile."""

from jaxpipe.launch.job import Launch
from topo.hostfile import openmpi_hostfile, openmpi_rankfile


def mpirun_script(launch: Launch) -> str:
    """Return a script to run on one host of the cluster, in a folder that all hosts share."""
    plan = launch.plan
    devices = [plan.device(rank) for rank in range(plan.num_ranks)]
    hosts = openmpi_hostfile(launch.cluster).splitlines()
    ranks = openmpi_rankfile(launch.cluster, devices).splitlines()
    lines = [
        "#!/usr/bin/env bash",
        f"# {plan.num_stages} stages x {plan.num_replicas} replicas on cluster "
        f"{launch.cluster.name}.",
        "# Started again, it goes on from the newest checkpoint.",
        "set -euo pipefail",
        "",
        "files=$(mktemp -d)",
        "trap 'rm -rf \"$files\"' EXIT",
        "cat > \"$files/hosts\" <<'HOSTS'",
        *hosts,
        "HOSTS",
        "cat > \"$files/ranks\" <<'RANKS'",
        *ranks,
        "RANKS",
        "",
        *launch.resume_lines(),
        "",
        "# Ranks pin themselves, so mpirun does not bind them.",
        'mpirun --hostfile "$files/hosts" --map-by "rankfile:FILE=$files/ranks" --bind-to none \\',
        f'  -n {plan.num_ranks} {launch.mpirun_command(launch.slots)} "${{resume[@]}}"',
    ]
    return "\n".join(lines) + "\n"
