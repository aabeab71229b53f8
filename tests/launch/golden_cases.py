"""The scripts and manifests that are kept as golden files.

`python -m tests.launch.golden_cases` rewrites the files; read the difference before you commit.
"""

from pathlib import Path

import topo
from jaxpipe.launch import Launch, mpijob_manifest, mpirun_script, slurm_script
from jaxpipe.plan import PlanConfig, identity_plan

FOLDER = Path(__file__).parent / "golden"


def launch_on(cluster: str, *, stages: int, replicas: int) -> Launch:
    """Return a run of a model of as many layers as stages."""
    where = topo.load(cluster)
    config = PlanConfig(cluster=cluster, stages=stages, replicas=replicas)
    plan = identity_plan(config, where, num_layers=stages, batch=4 * replicas, tied=True)
    return Launch(
        plan=plan,
        cluster=where,
        folder="runs/My run_2",
        command=("jaxpipe", "train", "my.toml", "--set", "run.folder=runs/My run_2"),
    )


def texts() -> dict[str, str]:
    """Return the text of each golden file by its name."""
    hosts = launch_on("two-region", stages=2, replicas=2)
    gpus = launch_on("homogeneous:hosts=2,devices=2", stages=2, replicas=2)
    return {
        "mpirun.sh": mpirun_script(hosts),
        "mpirun_gpu.sh": mpirun_script(gpus),
        "slurm_cpu.sh": slurm_script(hosts, time_limit="12:00:00"),
        "slurm_gpu.sh": slurm_script(gpus, time_limit="12:00:00"),
        "mpijob_cpu.yaml": mpijob_manifest(hosts, image="jaxpipe:1", claim="shared"),
        "mpijob_gpu.yaml": mpijob_manifest(gpus, image="jaxpipe:1", claim="shared"),
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text)
