"""`jaxpipe launch`: prints what starts a run elsewhere, and submits nothing."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import tyro


class Target(StrEnum):
    """What is to start the run."""

    MPIRUN = "mpirun"
    """Open MPI's mpirun, from one of the hosts."""
    SLURM = "slurm"
    """A batch script for sbatch."""
    MPIJOB = "mpijob"
    """A manifest of Kubeflow's MPI operator."""


def launch(
    config: tyro.conf.Positional[Path],
    *,
    target: Target,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    time: str = "24:00:00",
    image: str = "jaxpipe:latest",
    claim: str = "jaxpipe",
) -> int:
    """Print a script or a manifest that starts a run as its plan places it; submit nothing.

    Started again, the run goes on from its newest checkpoint.

    Args:
        config: a TOML file, read on every host from the same path.
        target: what is to start it: `mpirun`, `slurm` or `mpijob`.
        settings: changes to the configuration, such as `train.steps=10`; give it once for each.
        time: how long SLURM lets it run before it is queued again.
        image: the container image of an MPIJob, with jaxpipe and Open MPI.
        claim: the volume claim of an MPIJob with the configuration, the data and the runs.
    """
    from jaxpipe.config import cluster_from, load_config, plan_from
    from jaxpipe.launch import Launch, mpijob_manifest, mpirun_script, slurm_script

    read = load_config(config, settings)
    changes = [word for setting in settings for word in ("--set", setting)]
    job = Launch(
        plan=plan_from(read),
        cluster=cluster_from(read),
        folder=read.run.folder,
        command=("jaxpipe", "train", str(config), *changes),
    )
    match target:
        case Target.MPIRUN:
            print(mpirun_script(job), end="")
        case Target.SLURM:
            print(slurm_script(job, time_limit=time), end="")
        case Target.MPIJOB:
            print(mpijob_manifest(job, image=image, claim=claim), end="")
    return 0
