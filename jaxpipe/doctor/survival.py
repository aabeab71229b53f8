"""Report whether ranks survive the loss of others: by the installed MPI, or by this job's launcher.

Neither answer is a fault: without survival, `jaxpipe run` restarts the run.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import lines_of
from jaxpipe.runtime.process.mpirun import launch_command
from jaxpipe.runtime.process.ulfm_support import SURVIVAL_OPTIONS, check_survival

_HAS_ULFM = "options:ft_mpi_support:yes"
_TIMEOUT_S = 10.0
_ENDS = "a lost rank ends the job, which `jaxpipe run` restarts from its checkpoint"


def judge_survival(mpirun: str) -> Finding:
    """Return whether ranks that this `mpirun` starts can survive each other."""
    try:
        launch_command(mpirun, num_ranks=2, survives=True)
    except ConfigError:
        return _finding(f"{_ENDS}: only Open MPI has ULFM, {mpirun} is another MPI")
    try:
        options = subprocess.run(
            # The program next to mpirun: another one on the path may belong to another MPI.
            [str(Path(mpirun).with_name("ompi_info")), "--parsable"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return _finding(f"unknown: `ompi_info` next to {mpirun} does not answer ({error})")
    if _HAS_ULFM not in lines_of(options):
        return _finding(f"{_ENDS}: this Open MPI was built without ULFM")
    return _finding('the other ranks can continue when one is lost: set `run.survive` to "shrink"')


def judge_survival_of_job(environment: Mapping[str, str]) -> Finding:
    """Return whether the ranks of the job that this process is in survive each other.

    >>> judge_survival_of_job({"OMPI_MCA_mpi_ft_enable": "1"}).message
    'the other ranks of this job can continue when one is lost'
    """
    try:
        check_survival(environment)
    except ConfigError:
        options = " ".join(SURVIVAL_OPTIONS)
        return _finding(f"{_ENDS}: its launcher was not Open MPI's `mpirun {options}`")
    return _finding("the other ranks of this job can continue when one is lost")


def _finding(message: str) -> Finding:
    return Finding(about="survival", health=Health.OK, message=message)
