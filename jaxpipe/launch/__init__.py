"""What starts a run elsewhere, as text: scripts for mpirun and SLURM, a manifest for Kubernetes.

::

    plan + cluster ──► Launch ──► mpirun_script | slurm_script | mpijob_manifest

Nothing is submitted.
"""

from jaxpipe.launch.mpijob import mpijob_manifest
from jaxpipe.launch.mpirun import mpirun_script
from jaxpipe.launch.slurm import SlurmMpi, slurm_script
from jaxpipe.launch.spec import Launch

__all__ = ["Launch", "SlurmMpi", "mpijob_manifest", "mpirun_script", "slurm_script"]
