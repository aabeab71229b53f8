"""A batch script for SLURM, which is queued again before its time is over, and goes on.

::

    ... training ... ──► USR1, 120 s before the end ──► TERM to the ranks ──► scontrol requeue
          ▲                                                                        │
          └────────────── --resume, from the newest checkpoint ◄───────────────────┘

Source: the manuals of sbatch (--signal, --requeue), srun (--distribution=arbitrary) and scontrol.
"""

import shlex

from jaxpipe.launch.job import Launch

_NOTICE_S = 120


def slurm_script(launch: Launch, *, time_limit: str) -> str:
    """Return a script for `sbatch`; `time_limit` is in SLURM's own form, such as 12:00:00."""
    plan, counts = launch.plan, launch.ranks_of_host
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={launch.name}",
        f"#SBATCH --nodes={len(counts)}",
        f"#SBATCH --nodelist={','.join(counts)}",
        f"#SBATCH --ntasks={plan.num_ranks}",
        *(["#SBATCH --gpus-per-task=1"] if launch.uses_gpus else []),
        f"#SBATCH --time={time_limit}",
        f"#SBATCH --signal=B:USR1@{_NOTICE_S}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output={launch.name}-%j.out",
        f"# {plan.num_stages} stages x {plan.num_replicas} replicas on cluster "
        f"{launch.cluster.name}.",
        "# The end of the time loses what came after the last checkpoint: let `checkpoint.every`",
        "# steps take a few minutes.",
        "set -uo pipefail",
        "",
        f"mkdir -p {shlex.quote(launch.folder)}",
        "files=$(mktemp -d)",
        "trap 'rm -rf \"$files\"' EXIT",
        "# The host of each rank, in their order: the placement of the plan.",
        "cat > \"$files/hosts\" <<'HOSTS'",
        *(device.host for device in launch.devices),
        "HOSTS",
        'export SLURM_HOSTFILE="$files/hosts"',
        "",
        *launch.resume_lines(),
        "",
        f"srun --mpi=pmix --distribution=arbitrary --ntasks={plan.num_ranks} --cpu-bind=cores \\",
        f'  --kill-on-bad-exit=1 {launch.command_line} "${{resume[@]}}" &',
        "ranks=$!",
        "",
        "queue_again() {",
        "  trap '' USR1",
        '  kill -TERM "$ranks" 2> /dev/null',
        '  wait "$ranks"',
        '  scontrol requeue "$SLURM_JOB_ID"',
        "  exit 0",
        "}",
        "trap queue_again USR1",
        "",
        'wait "$ranks"',
    ]
    return "\n".join(lines) + "\n"
