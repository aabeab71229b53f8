"""`jaxpipe run --hosts`: the desk, the lock and the supervisor of a run over hosts."""

import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from jaxpipe.config import Config, load_config
from jaxpipe.errors import ConfigError
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.hosts.hosts_site import HostsSite
from jaxpipe.run.hosts.join_run import where
from jaxpipe.run.hosts.join_words import (
    JOIN_FILE,
    JoinAddress,
    new_key,
    write_join_file,
)
from jaxpipe.run.hosts.joining import Joining
from jaxpipe.run.hosts.listen import desk_at, listen_address
from jaxpipe.run.hosts.mpi_ways import check_interface, mpi_ways
from jaxpipe.run.hosts.placed_job import starter
from jaxpipe.run.supervise.planner import Planner
from jaxpipe.run.supervise.supervisor import Run, supervise
from jaxpipe.run.train_request import TrainRequest
from jaxpipe.runtime.run_config import ComputeKind, Survival
from jaxpipe.topo import Cluster
from jaxpipe.topo.hostfile import check_first_words
from jaxpipe.topo.route import Route, interfaces_here, routes_to


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsRequest:
    """What `jaxpipe run --hosts` is asked for; hosts join at `listen`, as HOST:PORT."""

    train: TrainRequest
    max_restarts: int
    versions: str
    listen: str | None = None


def run_over_hosts(request: HostsRequest, *, show: Callable[[str], object]) -> int:
    """Run over the hosts of the plan, and those that join; return the exit code.

    Raises:
        UserError: the input is wrong, or the folder is in use.
    """
    train = request.train
    config = load_config(train.config, train.settings, notice=show)
    _check(config)
    here = interfaces_here()
    check_interface(config.run.interface, here)
    planner = Planner(config=train.config, settings=train.settings)
    plan, folder = planner.configured(), Path(config.run.folder)
    _check_names(plan.cluster)
    routes = ways_from_here(plan.cluster)
    addresses, port = listen_addresses(request.listen, routes)
    ways = mpi_ways(config.run.interface, routes, here)
    with locked(folder, beats=False) as lock, starter(dict(ways.settings)) as start:
        start.command(plan.hosts)  # or says what lacks
        key = new_key()
        with closing(desk_at(key, addresses=addresses, port=port)) as desk:
            lines = _invite(folder, key, addresses, port=desk.port)
            show(f"{plan}\n{lines}; MPI uses {ways.text}")
            joining = Joining(
                answer_s=config.run.answer_s,
                desk=desk,
                planner=planner,
                start=start,
                versions=request.versions,
                there=list(plan.used),
                show=show,
            )
            site = HostsSite(
                joining=joining,
                request=replace(train, is_supervised=True, lock=lock.token),
                here=socket.gethostname(),
                beat=lock.beat,
            )
            run = Run(planner=planner, site=site, max_restarts=request.max_restarts, show=show)
            try:
                return supervise(run, resume=train.resume)
            finally:
                joining.close()
                (folder / JOIN_FILE).unlink(missing_ok=True)


def _invite(folder: Path, key: str, addresses: Sequence[str], *, port: int) -> str:
    """Write the file with which hosts join, and return the lines that say where."""
    first, *others = (address or socket.gethostname() for address in addresses)
    address = JoinAddress(host=first, port=port, key=key, others=tuple(others))
    file = write_join_file(folder, address)
    listens = ", ".join(where(host, port) for host in addresses if host)
    return (
        f"other hosts join with: jaxpipe join {file}\n"
        f"the run listens at {listens or f'port {port} of all its addresses'}"
    )


def ways_from_here(cluster: Cluster) -> tuple[Route, ...]:
    """Return the known ways to the other hosts of a cluster."""
    others = [host.name for host in cluster.hosts if host.name != socket.gethostname()]
    return tuple(route for route in routes_to(others).values() if route is not None)


def listen_addresses(text: str | None, routes: Sequence[Route]) -> tuple[tuple[str, ...], int]:
    """Return the addresses and the port at which hosts join.

    Without `--listen`, these are the addresses of this host on the ways to the others; where no
    way is known, it is every address.

    Raises:
        ConfigError: `--listen` is no address.
    """
    if text is not None:
        host, port = listen_address(text)
        return (host,), port
    sources = tuple(dict.fromkeys(route.source for route in routes if not route.is_loopback))
    return sources or ("",), 0


def _check_names(cluster: Cluster) -> None:
    """Check that Open MPI tells the hosts apart: those of the plan, and those that may join.

    Raises:
        ConfigError: it takes two for one.
    """
    try:
        check_first_words(host.name for host in cluster.hosts)
    except ValueError as error:
        raise ConfigError(f"`--hosts` starts ranks with Open MPI: {error}") from error


def _check(config: Config) -> None:
    """Check that ranks of other hosts can run this configuration.

    Raises:
        ConfigError: they cannot.
    """
    wrong = {
        "run.compute": (config.run.compute, ComputeKind.REAL),
        "run.survive": (config.run.survive, Survival.RESTART),
    }
    for field, (value, needed) in wrong.items():
        if value is not needed:
            raise ConfigError(
                f"`--hosts` restarts ranks that train: `{field}` is {value}; set it to {needed}"
            )
