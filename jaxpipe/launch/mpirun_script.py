"""A script around Open MPI's mpirun, with the placement of the plan as a rankfile.

mpirun starts a daemon over ssh on each host of its hostfile, used or not, and fails if it cannot:
so the file lists only the hosts of the plan.
"""

from jaxpipe.errors import ConfigError
from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.shell import EXPORT, STOPPED, begin_lines, file_lines, wait_lines


def mpirun_script(launch: Launch) -> str:
    """Return a script to run on one host of the cluster, in a folder that all hosts share.

    Raises:
        ConfigError: Open MPI takes two hosts for one.
    """
    from jaxpipe.topo.hostfile import check_first_words  # as in `rank_lines`

    try:
        check_first_words(launch.slots_of_host)
    except ValueError as error:
        raise ConfigError(
            f"`plan.cluster` must have hosts that mpirun tells apart: {error}"
        ) from error
    command = launch.mpirun_command(launch.slots)
    hosts = [f"{host} slots={count}" for host, count in launch.slots_of_host.items()]
    lines = [
        "#!/usr/bin/env bash",
        launch.heading,
        "# Restarted, it resumes from the newest checkpoint. SIGTERM makes it save and stop.",
        f"# Exit code: 0 after the last step, {STOPPED} if it was stopped before that.",
        "set -uo pipefail",
        "",
        "files=$(mktemp -d)",
        "trap 'rm -rf \"$files\"' EXIT",
        *file_lines('"$files/hosts"', hosts, word="HOSTS"),
        *file_lines('"$files/ranks"', rank_lines(launch), word="RANKS"),
        "",
        *begin_lines(launch),
        "",
        "# Ranks pin themselves, so mpirun does not bind them.",
        f'{" ".join(("mpirun", *launch.survival_options))} --hostfile "$files/hosts" \\',
        '  --map-by "rankfile:FILE=$files/ranks" --bind-to none \\',
        f'  -n {launch.plan.num_ranks} {EXPORT} {command} "${{resume[@]}}" &',
        *wait_lines(launch),
    ]
    return "\n".join(lines) + "\n"


def rank_lines(launch: Launch) -> list[str]:
    """Return the lines of the rankfile."""
    from jaxpipe.topo.hostfile import (
        openmpi_rankfile,  # it imports numpy, which `--help` can do without
    )

    devices = [launch.plan.device(rank) for rank in range(launch.plan.num_ranks)]
    return openmpi_rankfile(launch.cluster, devices).splitlines()
