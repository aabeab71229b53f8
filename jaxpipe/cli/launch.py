"""`jaxpipe launch`: prints a script that starts a run elsewhere, and submits nothing."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.errors import ConfigError
from jaxpipe.launch import (
    Launch,
    SlurmMpi,
    docker_script,
    mpijob_manifest,
    mpirun_script,
    skypilot_tasks,
    slurm_script,
)


class LauncherName(StrEnum):
    """The launcher of the run."""

    MPIRUN = "mpirun"
    """Open MPI's mpirun, from one of the hosts."""
    SLURM = "slurm"
    """A batch script for sbatch."""
    MPIJOB = "mpijob"
    """A manifest of Kubeflow's MPI operator."""
    SKYPILOT = "skypilot"
    """Task files of SkyPilot, one for each region of the plan."""
    DOCKER = "docker"
    """A script that builds the image of the two above from the Dockerfile of a clone."""


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
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
) -> int:
    """Print a script or a manifest that starts a run as its plan places it; submit nothing.

    Restarted, the run resumes from its newest checkpoint.

    Args:
        config: a TOML file, read on every host from the same path.
        target: the launcher: `mpirun`, `slurm`, `mpijob` or `skypilot`; or `docker`, for the image.
        settings: a change to the configuration, such as `train.steps=10`; may be repeated.
        time: SLURM's time limit, after which the run is requeued.
        notice: how many seconds before that the ranks are signalled to save.
        mpi: how SLURM starts the ranks: srun with `pmix` (Open MPI, unless `run.survive` is shrink)
            or `pmi2` (MPICH), or Open MPI's `mpirun`, where SLURM has no PMIx.
        image: the container image of an MPIJob or of SkyPilot, with jaxpipe and Open MPI.
        claim: the volume claim of an MPIJob with the configuration, the data and the runs.
        out: the folder for the task files of SkyPilot, which are several.
    """
    from jaxpipe.cli.launched_run import launched_run  # slow; `--help` can do without

    if (out is None) == (target is LauncherName.SKYPILOT):
        raise ConfigError(
            "`--out` must name the folder for the files of `--target` skypilot; other targets print"
        )
    job = launched_run(config, settings)
    match target:
        case LauncherName.MPIRUN:
            print(mpirun_script(job), end="")
        case LauncherName.SLURM:
            mpi = mpi or (SlurmMpi.MPIRUN if job.survives else SlurmMpi.PMIX)
            print(slurm_script(job, time_limit=time, notice_s=notice, mpi=mpi), end="")
        case LauncherName.MPIJOB:
            print(mpijob_manifest(job, image=image, claim=claim), end="")
        case LauncherName.DOCKER:
            print(docker_script(job, image=image), end="")
        case LauncherName.SKYPILOT:
            assert out is not None
            _write_tasks(job, image=image, folder=out)
    return 0


def _write_tasks(job: Launch, *, image: str, folder: Path) -> None:
    from jaxpipe.run.folder.output_files import announce_replaced

    tasks = {folder / name: text for name, text in skypilot_tasks(job, image=image).items()}
    folder.mkdir(parents=True, exist_ok=True)
    announce_replaced(tasks)
    for path, text in tasks.items():
        path.write_text(text)
    print(f"skypilot -> {', '.join(map(str, tasks))}; {next(iter(tasks))} says how to start")
