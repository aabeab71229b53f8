"""Scripts for mpirun and SLURM, and manifests for Kubernetes, that start a run elsewhere.

::

    plan + cluster ──► Launch ──► mpirun_script | slurm_script | mpijob_manifest

Nothing is submitted.
"""

from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.mpijob_manifest import mpijob_manifest
from jaxpipe.launch.mpirun_script import mpirun_script
from jaxpipe.launch.slurm_script import SlurmMpi, slurm_script

__all__ = ["Launch", "SlurmMpi", "mpijob_manifest", "mpirun_script", "slurm_script"]
