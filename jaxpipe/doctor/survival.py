"""Whether ranks survive each other: what the MPI at hand can do, or how this job was started.

Both are well: a run whose ranks do not is started again by `jaxpipe run`.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.mpirun import launch_command
from jaxpipe.runtime.process.ulfm import SURVIVAL_OPTIONS, check_survival

_HAS_ULFM = "options:ft_mpi_support:yes"
_TIMEOUT_S = 10.0
_ENDS = "a lost rank ends the job; started again, it goes on from its checkpoint (`jaxpipe run`)"


def judge_survival(mpirun: str) -> Finding:
    """Return whether ranks that this `mpirun` starts can survive each other."""
    try:
        launch_command(mpirun, num_ranks=2, survives=True)
    except ConfigError:
        return _finding(f"{_ENDS}: Open MPI alone has ULFM, and {mpirun} is another MPI's")
    try:
        said = subprocess.run(
            [str(Path(mpirun).with_name("ompi_info")), "--parsable"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return _finding(f"not known: `ompi_info` beside {mpirun} does not answer ({error})")
    if _HAS_ULFM not in said.splitlines():
        return _finding(f"{_ENDS}: this Open MPI was built without ULFM")
    return _finding('ranks can go on without one that is lost: set `run.survive` to "shrink"')


def judge_survival_of_job(environment: Mapping[str, str]) -> Finding:
    """Return whether the ranks of the job that this process is in survive each other.

    >>> judge_survival_of_job({"OMPI_MCA_mpi_ft_enable": "1"}).words
    'ranks of this job can go on without one that is lost'
    """
    try:
        check_survival(environment)
    except ConfigError:
        options = " ".join(SURVIVAL_OPTIONS)
        return _finding(f"{_ENDS}: its launcher was not Open MPI's `mpirun {options}`")
    return _finding("ranks of this job can go on without one that is lost")


def _finding(words: str) -> Finding:
    return Finding(about="survival", health=Health.OK, words=words)
