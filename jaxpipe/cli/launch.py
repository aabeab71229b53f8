"""`jaxpipe launch`: prints a script that starts a run elsewhere, and submits nothing."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.launch import SlurmMpi, mpijob_manifest, mpirun_script, slurm_script


class LauncherName(StrEnum):
    """The launcher of the run."""

    MPIRUN = "mpirun"
    """Open MPI's mpirun, from one of the hosts."""
    SLURM = "slurm"
    """A batch script for sbatch."""
    MPIJOB = "mpijob"
    """A manifest of Kubeflow's MPI operator."""


def launch(  # noqa: PLR0913  each is an option of the command line
    config: tyro.conf.Positional[Path],
    *,
    target: LauncherName,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    time: str = "24:00:00",
    notice: int = 120,
    mpi: SlurmMpi | None = None,
    image: str = "jaxpipe:latest",
    claim: str = "jaxpipe",
) -> int:
    """Print a script or a manifest that starts a run as its plan places it; submit nothing.

    Restarted, the run resumes from its newest checkpoint.

    Args:
        config: a TOML file, read on every host from the same path.
        target: the launcher: `mpirun`, `slurm` or `mpijob`.
        settings: a change to the configuration, such as `train.steps=10`; may be repeated.
        time: SLURM's time limit, after which the run is requeued.
        notice: how many seconds before that the ranks are signalled to save.
        mpi: how SLURM starts the ranks: srun with `pmix` (Open MPI, unless `run.survive` is shrink)
            or `pmi2` (MPICH), or Open MPI's `mpirun`, where SLURM has no PMIx.
        image: the container image of an MPIJob, with jaxpipe and Open MPI.
        claim: the volume claim of an MPIJob with the configuration, the data and the runs.
    """
    from jaxpipe.cli.launched_run import launched_run  # slow; `--help` can do without

    job = launched_run(config, settings)
    match target:
        case LauncherName.MPIRUN:
            print(mpirun_script(job), end="")
        case LauncherName.SLURM:
            mpi = mpi or (SlurmMpi.MPIRUN if job.survives else SlurmMpi.PMIX)
            print(slurm_script(job, time_limit=time, notice_s=notice, mpi=mpi), end="")
        case LauncherName.MPIJOB:
            print(mpijob_manifest(job, image=image, claim=claim), end="")
    return 0
