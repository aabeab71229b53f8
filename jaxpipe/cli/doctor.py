"""`jaxpipe doctor`: checks whether this machine, or this job, is fit to train."""

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.process.launched_rank import LaunchedRank, rank_here

if TYPE_CHECKING:  # `--help` need not wait for these
    from jaxpipe.doctor import Finding
    from jaxpipe.topo import Cluster


def doctor(*, folder: Path = Path("."), seconds: float = 60.0, cluster: str | None = None) -> int:
    """Check MPI, ranks, cores, devices, versions, links and disk, and print a fix for each fault.

    Alone, it starts two ranks of its own; under `mpirun`, it checks the ranks of that job. The exit
    code is 1 if something is broken.

    Args:
        folder: the folder for runs.
        seconds: timeout for the answers of ranks.
        cluster: a TOML file, or one of the catalogue: check this host's TCP settings against its
            links, and show the ways to its hosts.
    """
    from jaxpipe.doctor import Health, judge_disk, judge_links_of, judge_ways_to, say_hello
    from jaxpipe.run.terminal.console import console
    from jaxpipe.topo.host_tcp import read_tcp_settings

    described = None if cluster is None else _cluster(cluster)
    here = rank_here(os.environ)
    if here is None:
        findings = say_hello(timeout_s=seconds)
    else:
        findings = _of_this_job(here, timeout_s=seconds)
        if findings is None:  # rank 0 prints
            return 0
    if described is not None:
        findings = (
            *findings,
            *judge_links_of(described, [read_tcp_settings()]),
            *judge_ways_to(described, here=socket.gethostname()),
        )
    findings = (*findings, judge_disk(folder))
    for finding in findings:
        console.print(
            f"{finding.health.value:<8}{finding.about:<10}{finding.message}", markup=False
        )
        if finding.fix:
            console.print(f"{'':<18}fix: {finding.fix}", markup=False)
    is_broken = any(finding.health is Health.BROKEN for finding in findings)
    ending = "something is broken: fix it first" if is_broken else "next: jaxpipe init mine"
    console.print(f"\n{ending}", markup=False)
    return int(is_broken)


def _cluster(name: str) -> "Cluster":
    from jaxpipe import topo

    try:
        return topo.load(name)
    except (ValueError, OSError) as error:
        raise ConfigError(f"`--cluster`: {error}") from error


def _of_this_job(here: LaunchedRank, *, timeout_s: float) -> "tuple[Finding, ...] | None":
    """Return the findings about this job on rank 0, and None elsewhere."""
    from jaxpipe.runtime.process.affinity import pin
    from jaxpipe.runtime.process.gpu_assignment import take_devices
    from jaxpipe.runtime.process.process_signals import die_with_parent

    die_with_parent()
    pin(os.environ)  # before jax, which makes as many threads as there are cores
    take_devices(os.environ, each=1)

    from jaxpipe.comm import closing
    from jaxpipe.comm.mpi.mpi_transport import MpiTransport
    from jaxpipe.doctor import gather_facts, judge_job, judge_survival_of_job

    transport = MpiTransport()
    with closing(transport):
        facts = gather_facts(transport, timeout_s=timeout_s)
    if facts is None or here.rank > 0:
        return None
    finding = judge_job(facts, num_started=here.num_ranks)
    return (*finding, judge_survival_of_job(os.environ))
