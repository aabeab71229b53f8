"""A batch script for SLURM that saves before its time limit, requeues itself, and resumes.

::

    ... training ... ──► USR1 to the script ──► USR1 to the ranks ──► saved ──► scontrol requeue
          ▲                                                                            │
          └──────────────── --resume, from the newest checkpoint ◄─────────────────────┘

srun forwards USR1 to the ranks; on TERM it would kill them. The script waits for the ranks for a
while, and is requeued even if they hang, but only if there is a new checkpoint and steps are left:
so it terminates. A preempted job is requeued, too: SLURM sends TERM to its ranks. A cancelled
one is not.

How SLURM starts MPI ranks differs (see `SlurmMpi`). Clusters use srun with PMIx for Open MPI; where
ranks survive the loss of others, Open MPI's mpirun starts them in the allocation.

Source: the manuals of sbatch (--signal, --requeue), srun (--distribution=arbitrary) and scontrol
(PreemptTime); each was tried with SLURM 22.05, see `experiments/faults/launch.md`.
"""

import re
from enum import StrEnum

from jaxpipe.errors import ConfigError
from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.mpirun_script import rank_lines
from jaxpipe.launch.shell import EXPORT, begin_lines, file_lines, is_incomplete, verdict_lines

_TO_REQUEUE_S = 30
"""Seconds of the notice that are left for SLURM to end the job before its time limit."""

_TIME_LIMIT = re.compile(
    r"[0-9]{1,9}(:[0-9]{1,3}){0,2}|[0-9]{1,9}-[0-9]{1,3}(:[0-9]{1,3}){0,2}|UNLIMITED|INFINITE"
)


class SlurmMpi(StrEnum):
    """How the ranks are started and find each other."""

    PMIX = "pmix"
    """srun, for Open MPI, where SLURM has its PMIx plugin: `srun --mpi=list` says so."""
    PMI2 = "pmi2"
    """srun, for MPICH."""
    MPIRUN = "mpirun"
    """Open MPI's own launcher, which needs SLURM only to start its daemons with srun.

    If SLURM allocates a part of a host's cores, the ranks of that host share them.
    """


def slurm_script(
    launch: Launch, *, time_limit: str, notice_s: int = 120, mpi: SlurmMpi = SlurmMpi.PMIX
) -> str:
    """Return a script for `sbatch`; `time_limit` is in SLURM's own form, such as 12:00:00.

    Ranks are signalled to save `notice_s` seconds before it; SLURM may be a minute early.

    Raises:
        ConfigError: the time limit is not in that form, the notice leaves no time to save, or ranks
            are to survive others under srun.
    """
    if not _TIME_LIMIT.fullmatch(time_limit):
        raise ConfigError(
            f"`--time` must be minutes, 12:00:00, 2-12:00 or UNLIMITED, not {time_limit!r:.80}"
        )
    if notice_s <= _TO_REQUEUE_S:
        raise ConfigError(
            f"`--notice` ({notice_s} s) must leave ranks time to save before SLURM ends them; set "
            f"it to {_TO_REQUEUE_S} s more than a step and a checkpoint take"
        )
    if launch.survives and mpi is not SlurmMpi.MPIRUN:
        raise ConfigError(
            f"`run.survive` is shrink, and srun (`--mpi` {mpi}) ends all ranks when one is lost; "
            "use --mpi mpirun, or set `run.survive` to restart"
        )
    lines = [
        "#!/usr/bin/env bash",
        *_requests(launch, time_limit=time_limit, notice_s=notice_s, mpi=mpi),
        launch.heading,
        # Not -e: the script continues when ranks fail, and judges their exit code.
        "set -uo pipefail",
        "",
        "files=$(mktemp -d)",
        "trap 'rm -rf \"$files\"' EXIT",
        *begin_lines(launch),
        # Only a newer one is progress: without progress, requeueing would never end.
        "before=$newest",
        "",
        *(_mpirun(launch) if mpi is SlurmMpi.MPIRUN else _srun(launch, mpi=mpi)),
        *_end(launch, wait_s=notice_s - _TO_REQUEUE_S),
    ]
    return "\n".join(lines) + "\n"


def _requests(launch: Launch, *, time_limit: str, notice_s: int, mpi: SlurmMpi) -> list[str]:
    """Request as much on each host as on the fullest, or SLURM would distribute tasks freely."""
    counts = launch.ranks_of_host
    fullest = max(counts.values())
    num_gpus = launch.gpus_each
    inside = mpi is SlurmMpi.MPIRUN
    gpus = f"--gpus-per-node={fullest * num_gpus}" if inside else f"--gpus-per-task={num_gpus}"
    requests = [
        f"--job-name={launch.name}",
        f"--nodes={len(counts)}",
        f"--nodelist={','.join(counts)}",
        f"--ntasks-per-node={fullest}",
        *([gpus] if launch.uses_gpus else []),
        f"--time={time_limit}",
        f"--signal=B:USR1@{notice_s}",  # B: to the script alone, which passes it on
        "--requeue",
        "--open-mode=append",  # a requeued job continues the output of the first
        f"--output={launch.name}-%j.out",
    ]
    return [f"#SBATCH {request}" for request in requests]


def _srun(launch: Launch, *, mpi: SlurmMpi) -> list[str]:
    return [
        "# The host of each rank, in rank order: the placement of the plan.",
        *file_lines('"$files/hosts"', (device.host for device in launch.devices), word="HOSTS"),
        'export SLURM_HOSTFILE="$files/hosts"',
        f"srun --mpi={mpi} --distribution=arbitrary --ntasks={launch.plan.num_ranks} \\",
        # One failed rank must end the others: they would wait for it until their deadline.
        "  --cpu-bind=cores --kill-on-bad-exit=1 \\",
        f'  {launch.command_line} "${{resume[@]}}" &',
    ]


def _mpirun(launch: Launch) -> list[str]:
    """Each rank uses the GPU of its local rank, among those that SLURM allocates to the job."""
    return [
        *file_lines('"$files/ranks"', rank_lines(launch), word="RANKS"),
        f"{' '.join(('mpirun', *launch.survival_options))} \\",
        '  --map-by "rankfile:FILE=$files/ranks" --bind-to none \\',
        f'  -n {launch.plan.num_ranks} {EXPORT} {launch.command_line} "${{resume[@]}}" &',
    ]


def _end(launch: Launch, *, wait_s: int) -> list[str]:
    return [
        "ranks=$!",
        "stopping=''",
        "trap 'stopping=yes; kill -USR1 \"$ranks\" 2> /dev/null' USR1",
        # Returns early when a signal is trapped: hence the loop, which polls with a deadline.
        'wait "$ranks"',
        "# Either the ranks have ended, or they have just been signalled to save and stop.",
        f"for (( second = 0; second < {wait_s}; second++ )); do",
        '  kill -0 "$ranks" 2> /dev/null || break',
        "  sleep 1",
        "done",
        'if kill -0 "$ranks" 2> /dev/null; then',
        f"  echo 'the ranks did not stop in {wait_s} s' >&2",
        "  code=1",
        "else",
        '  wait "$ranks"',
        "  code=$?",
        "fi",
        "# On preemption, SLURM sends TERM to the ranks, which save if they can.",
        "preempted=''",
        'job=$(scontrol show job "$SLURM_JOB_ID" 2> /dev/null)',
        'if [[ "$job" == *PreemptTime=[0-9]* ]]; then stopping=yes preempted=yes; fi',
        *verdict_lines(launch),
        f'if [[ -n "$stopping" && {is_incomplete(launch)} ]]; then',
        "  find_newest",
        '  if [[ "$newest" != "$before" || -n "$preempted" ]]; then',
        '    scontrol requeue "$SLURM_JOB_ID" && exit 0',
        "  else",
        "    echo 'not requeued: the time limit is too short for a new checkpoint' >&2",
        "    code=1",
        "  fi",
        "fi",
        'exit "$code"',
    ]
