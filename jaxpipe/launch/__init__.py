"""Scripts for mpirun and SLURM, manifests for Kubernetes and SkyPilot, that start a run elsewhere.

::

    plan + cluster ──► Launch ──► mpirun_script | slurm_script | mpijob_manifest | skypilot_tasks
                              └─► docker_script, the image of the last two

Nothing is submitted.
"""

from jaxpipe.launch.docker_script import docker_script
from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.launch_target import OPTIONS_OF, LaunchTarget, check_options, targets_of
from jaxpipe.launch.mpijob_manifest import mpijob_manifest
from jaxpipe.launch.mpirun_script import mpirun_script
from jaxpipe.launch.skypilot_tasks import skypilot_tasks
from jaxpipe.launch.slurm_script import SlurmMpi, slurm_script

__all__ = [
    "OPTIONS_OF",
    "Launch",
    "LaunchTarget",
    "SlurmMpi",
    "check_options",
    "docker_script",
    "mpijob_manifest",
    "mpirun_script",
    "skypilot_tasks",
    "slurm_script",
    "targets_of",
]
