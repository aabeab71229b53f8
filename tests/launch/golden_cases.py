"""The scripts and manifests that are kept as golden files.

`python -m tests.launch.golden_cases` rewrites the files; read the difference before you commit.
"""

from pathlib import Path

from jaxpipe import topo
from jaxpipe.launch import (
    Launch,
    SlurmMpi,
    docker_script,
    mpijob_manifest,
    mpirun_script,
    skypilot_tasks,
    slurm_script,
)
from jaxpipe.plan import default_plan
from tests.plan_section import decided

FOLDER = Path(__file__).parent / "golden"


def launch_on(
    cluster: str,
    *,
    stages: int,
    replicas: int,
    survives: bool = False,
    store: str | None = None,
) -> Launch:
    """Return a run of a model of as many layers as stages."""
    where = topo.load(cluster)
    config = decided(cluster=cluster, stages=stages, replicas=replicas)
    plan = default_plan(config, where, num_layers=stages, batch=4 * replicas, tied=True)
    return Launch(
        plan=plan,
        cluster=where,
        folder="runs/My run_2",
        arguments=("train", "my.toml", "--set", "run.folder=runs/My run_2"),
        steps=600,
        survives=survives,
        store=store,
    )


def texts() -> dict[str, str]:
    """Return the text of each golden file by its name."""
    hosts = launch_on("two-region", stages=2, replicas=2)
    gpus = launch_on("homogeneous:hosts=2,devices=2", stages=2, replicas=2)
    survive = launch_on("two-region", stages=2, replicas=2, survives=True)
    stored = launch_on("two-region", stages=2, replicas=2, store="s3://bucket/my run")
    uneven = launch_on("homogeneous:hosts=2,devices=2", stages=3, replicas=1)
    limit, inside = "12:00:00", SlurmMpi.MPIRUN
    tasks = {
        f"skypilot_{name}": text for name, text in skypilot_tasks(hosts, image="jaxpipe:1").items()
    }
    (task_gpu,) = skypilot_tasks(gpus, image="jaxpipe:1").values()
    return {
        **tasks,
        "skypilot_gpu.yaml": task_gpu,
        "docker_gpu.sh": docker_script(gpus, image="registry.example/jaxpipe:1"),
        "docker_store.sh": docker_script(stored, image="registry.example/jaxpipe:1"),
        "mpirun.sh": mpirun_script(hosts),
        "mpirun_gpu.sh": mpirun_script(gpus),
        "mpirun_survive.sh": mpirun_script(survive),
        "mpirun_store.sh": mpirun_script(stored),
        "slurm_store.sh": slurm_script(stored, time_limit=limit),
        "slurm_cpu.sh": slurm_script(hosts, time_limit=limit),
        "slurm_gpu.sh": slurm_script(gpus, time_limit=limit),
        "slurm_mpich.sh": slurm_script(hosts, time_limit=limit, mpi=SlurmMpi.PMI2),
        "slurm_survive.sh": slurm_script(survive, time_limit=limit, notice_s=300, mpi=inside),
        "slurm_uneven.sh": slurm_script(uneven, time_limit=limit, mpi=inside),
        "mpijob_cpu.yaml": mpijob_manifest(hosts, image="jaxpipe:1", claim="shared"),
        "mpijob_survive.yaml": mpijob_manifest(survive, image="jaxpipe:1", claim="shared"),
        "mpijob_gpu.yaml": mpijob_manifest(gpus, image="jaxpipe:1", claim="shared"),
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
