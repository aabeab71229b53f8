"""`jaxpipe launch`: prints a script that starts a run elsewhere, and submits nothing."""

from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.errors import ConfigError
from jaxpipe.launch import (
    Launch,
    LaunchTarget,
    SlurmMpi,
    check_options,
    docker_script,
    mpijob_manifest,
    mpirun_script,
    skypilot_tasks,
    slurm_script,
)

_IMAGE = "jaxpipe:latest"


def launch(  # noqa: PLR0913  each is an option of the command line
    config: tyro.conf.Positional[Path],
    *,
    target: LaunchTarget,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    time: str | None = None,
    notice: int | None = None,
    mpi: SlurmMpi | None = None,
    image: str | None = None,
    claim: str | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
) -> int:
    """Print a script or a manifest that starts a run as its plan places it; submit nothing.

    Restarted, the run resumes from its newest checkpoint.

    Args:
        config: a TOML file, read on every host from the same path.
        target: the launcher: `mpirun`, `slurm`, `mpijob` or `skypilot`; or `docker`, for the image.
        settings: a change to the configuration, such as `train.steps=10`; may be repeated.
        time: of slurm: the time limit, after which the run is requeued. Default: 24:00:00.
        notice: of slurm: how many seconds before that the ranks are signalled to save. Default:
            120.
        mpi: of slurm: how it starts the ranks: srun with `pmix` (Open MPI, unless `run.survive` is
            shrink) or `pmi2` (MPICH), or Open MPI's `mpirun`, where SLURM has no PMIx.
        image: of mpijob, skypilot and docker: the container image, with jaxpipe and Open MPI.
            Default: jaxpipe:latest.
        claim: of mpijob: the volume claim with the configuration, the data and the runs. Default:
            jaxpipe.
        out: of skypilot: the folder for its task files, which are several.
    """
    from jaxpipe.cli.launched_run import launched_run  # slow; `--help` can do without

    options = {"time": time, "notice": notice, "mpi": mpi, "image": image, "claim": claim}
    check_options(target, {**options, "out": out})
    if out is None and target is LaunchTarget.SKYPILOT:
        raise ConfigError("`--out` must name the folder for the files of `--target` skypilot")
    image = _IMAGE if image is None else image
    job = launched_run(config, settings)
    match target:
        case LaunchTarget.MPIRUN:
            print(mpirun_script(job), end="")
        case LaunchTarget.SLURM:
            limit = "24:00:00" if time is None else time
            notice_s = 120 if notice is None else notice
            mpi = mpi or (SlurmMpi.MPIRUN if job.survives else SlurmMpi.PMIX)
            print(slurm_script(job, time_limit=limit, notice_s=notice_s, mpi=mpi), end="")
        case LaunchTarget.MPIJOB:
            claim = "jaxpipe" if claim is None else claim
            print(mpijob_manifest(job, image=image, claim=claim), end="")
        case LaunchTarget.DOCKER:
            print(docker_script(job, image=image), end="")
        case LaunchTarget.SKYPILOT:
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
