"""`jaxpipe topo`: the catalogue of clusters, scripts that emulate them, network measurement."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe import topo
from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import read_text, write_inside
from jaxpipe.pictures.cluster_map import draw_map
from jaxpipe.pictures.cluster_picture import draw_picture
from jaxpipe.run.folder.output_files import check_output, check_output_folder, check_picture
from jaxpipe.run.terminal.console import console
from jaxpipe.runtime.process.launched_rank import rank_here
from jaxpipe.topo.draw_cluster import draw_cluster
from jaxpipe.topo.hostfile import mpich_hostfile, openmpi_hostfile, openmpi_rankfile
from jaxpipe.topo.probe.measurements import ProbeSettings, advice_of, cluster_of, spread_of
from jaxpipe.topo.tc import bucket_commands, parse_addresses, tc_scripts
from jaxpipe.topo.token_bucket import parse_rate, parse_size, parse_time
from jaxpipe.topo.write import cluster_toml

_MOST_NAMES = 8
"""Of hosts in a line."""
_MOST_BYTES = 2**24


@contextmanager
def _users_mistakes() -> Iterator[None]:
    """Translate errors of `topo` about its input, and of files, into a user error."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


def list_clusters() -> int:
    """List this machine and the clusters of the catalogue, with the GPUs of each."""
    clusters = {name: topo.load(name) for name in (topo.THIS_MACHINE, *topo.names())}
    rows = [
        (name, f"{len(cluster):>3} devices, {_gpus(cluster)}", ", ".join(cluster.regions))
        for name, cluster in clusters.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, devices, regions in rows:
        line = f"{name:<{widths[0]}}  {devices:<{widths[1]}}  {regions}"
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"\nnext: jaxpipe topo show {next(iter(clusters))}", markup=False)
    return 0


def _gpus(cluster: topo.Cluster) -> str:
    """Return the types of a cluster's devices, as far as they are known."""
    names = dict.fromkeys(d.gpu.name if d.gpu else "of unknown speed" for d in cluster.devices)
    return ", ".join(names)


def show_cluster(
    name: tyro.conf.Positional[str],
    *,
    picture: Path | None = None,
    map_: Annotated[Path | None, tyro.conf.arg(name="map")] = None,
) -> int:
    """Draw a cluster: its hosts, the links between its regions, and its islands.

    Args:
        name: `this-machine`, one of the catalogue, such as `aws:regions=ohio+tokyo,hosts=4`, or a
            TOML file.
        picture: a PNG, SVG or PDF to write with latency and bandwidth of all pairs of devices.
        map_: a PNG, SVG or PDF to write with the regions and the links between them.
    """
    check_picture("--picture", picture)
    check_picture("--map", map_)
    with _users_mistakes():
        cluster = topo.load(name)
        console.print(draw_cluster(cluster), markup=False)
    if picture is not None:
        draw_picture(cluster, picture)
        console.print(f"\npicture -> {picture}", markup=False)
    if map_ is not None:
        draw_map(cluster, map_)
        console.print(f"\nmap -> {map_}", markup=False)
    return 0


def write_tc(  # noqa: PLR0913  each is an option of the command line
    name: tyro.conf.Positional[str],
    *,
    device: str,
    addresses: Path | None = None,
    out: Path = Path("tc"),
    tbf: bool = False,
    rate: str | None = None,
    burst: str | None = None,
    latency: str | None = None,
) -> int:
    """Write tc scripts that make a fast network behave like a cluster: two for each host.

    Args:
        name: a cluster of the catalogue, or a TOML file.
        device: the network interface to shape on every host, such as eth0.
        addresses: a file of lines `HOST ADDRESS`, one for each host of the cluster.
        out: the folder to write.
        tbf: only print the command for each host that limits all that leaves it to the speed of
            its NIC, without delays: it needs no addresses.
        rate: with `--tbf`, a limit in place of the NIC's: `30gibit` (2^30 bits/s), `30gbit` (1e9).
        burst: with `--tbf`, what may go at once after a silence, such as `60m` (2^20 bytes).
            Default: a millisecond of the rate.
        latency: with `--tbf`, how long a packet may wait, such as `60ms`. Default: 200ms.
    """
    bucket = {"rate": rate, "burst": burst, "latency": latency}
    if tbf or addresses is None:
        return _print_buckets(name, device=device, tbf=tbf, addresses=addresses, bucket=bucket)
    for option in (option for option, word in bucket.items() if word is not None):
        raise ConfigError(f"`--{option}` is for `--tbf`: leave it out, or `--addresses`")
    with _users_mistakes():
        known = parse_addresses(read_text(addresses, most_bytes=_MOST_BYTES))
        scripts = tc_scripts(topo.load(name), known, device=device)
        texts = {
            f"{host}.{kind}.sh": text
            for host, script in scripts.items()
            for kind, text in (("setup", script.setup), ("undo", script.undo))
        }
        check_output_folder("--out", out, texts)
        out.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_inside(out, file, text).chmod(0o755)
    first = next(iter(scripts))
    console.print(f"{2 * len(scripts)} scripts -> {out}", markup=False)
    script = shlex.quote(str(out / f"{first}.setup.sh"))
    console.print(f"\nnext, as root on {first}: {script}", markup=False)
    return 0


def _print_buckets(
    name: str,
    *,
    device: str,
    tbf: bool,
    addresses: Path | None,
    bucket: Mapping[str, str | None],
) -> int:
    """Print the command that limits the NIC of each host; hosts alike share one."""
    if not tbf:
        raise ConfigError(
            "`--addresses` is missing: hosts are identified by their addresses; give the file, or "
            "`--tbf` to limit whole interfaces"
        )
    if addresses is not None:
        raise ConfigError("`--tbf` limits whole interfaces: leave `--addresses` out")
    with _users_mistakes():
        rate, burst, latency = bucket["rate"], bucket["burst"], bucket["latency"]
        commands = bucket_commands(
            topo.load(name),
            device=device,
            bytes_per_s=None if rate is None else parse_rate(rate),
            burst_bytes=None if burst is None else parse_size(burst),
            latency_s=0.2 if latency is None else parse_time(latency),
        )
    hosts: dict[str, list[str]] = {}
    for host, words in commands.items():
        hosts.setdefault(shlex.join(("tc", *words)), []).append(host)
    for command, alike in hosts.items():
        names = ", ".join(alike) if len(alike) <= _MOST_NAMES else f"each of {len(alike)} hosts"
        print(f"# as root on {names}\n{command}")
    print(f"# to undo\n{shlex.join(('tc', 'qdisc', 'del', 'dev', device, 'root'))}")
    return 0


def write_hosts(
    name: tyro.conf.Positional[str],
    *,
    devices: str | None = None,
    plan: Path | None = None,
    out: Path = Path("."),
) -> int:
    """Write a placement as files for `mpirun`: hostfiles and a rankfile.

    Args:
        name: a cluster of the catalogue, or a TOML file.
        devices: the device of each rank, such as `0,2,1,3`; by default rank r is on device r.
        plan: a plan file, in place of `--devices`.
        out: the folder to write.
    """
    with _users_mistakes():
        cluster = topo.load(name)
        placement = _chosen(cluster, devices=devices, plan=plan)
        check_output_folder("--out", out, ("openmpi.hosts", "openmpi.ranks", "mpich.hosts"))
        out.mkdir(parents=True, exist_ok=True)
        hosts = write_inside(out, "openmpi.hosts", openmpi_hostfile(cluster))
        ranks = write_inside(out, "openmpi.ranks", openmpi_rankfile(cluster, placement))
        mpich = write_inside(out, "mpich.hosts", mpich_hostfile(cluster, placement))
    mapping = ("--map-by", f"rankfile:FILE={ranks}", "--bind-to", "none")
    openmpi = shlex.join(("mpirun", "--hostfile", str(hosts), *mapping, "-n", str(len(placement))))
    console.print(
        f"Open MPI: {openmpi} ...\n"
        f"MPICH:    {shlex.join(('mpiexec', '-f', str(mpich), '-n', str(len(placement))))} ...",
        markup=False,
    )
    return 0


def _chosen(cluster: topo.Cluster, *, devices: str | None, plan: Path | None) -> Sequence[int]:
    from jaxpipe.plan import read_plan  # slow

    if plan is not None:
        if devices is not None:
            raise ValueError(
                f"`--devices` ({devices}) and `--plan` ({plan}) exclude each other; leave one out"
            )
        return [device for group in read_plan(plan, cluster).groups for device in group]
    return range(len(cluster)) if devices is None else _numbers(devices)


def _numbers(devices: str) -> list[int]:
    numbers = devices.split(",")
    if not devices.isascii() or not all(number.strip().isdecimal() for number in numbers):
        raise ValueError(f"`--devices` must be numbers such as 0,2,1, is {devices!r}")
    return [int(number) for number in numbers]


def probe(
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    name: str = "measured",
    repeats: int = 5,
    large_mib: int = 8,
) -> int:
    """Measure the network between the ranks of the `mpirun` that starts this; write a cluster file.

    Args:
        out: the TOML file to write.
        name: the name of the cluster.
        repeats: large messages per pair; small ones are four times as many.
        large_mib: the size of a large message in MiB.
    """
    from jaxpipe.topo.probe.measure import measure  # it imports mpi4py

    here = rank_here(os.environ)
    if here is None or here.rank == 0:  # only rank 0 writes
        check_output("--out", out)
    with _users_mistakes():
        settings = ProbeSettings(
            small_repeats=4 * repeats, large_bytes=large_mib * 2**20, large_repeats=repeats
        )
        measurements = measure(settings)
        if measurements is None:  # all ranks but 0
            return 0
        cluster = cluster_of(measurements, name=name)
        spread = spread_of(measurements, settings)
        about = "Measured by `jaxpipe topo probe`: medians; latency is half of a round trip."
        out.write_text(cluster_toml(cluster, measured=spread, about=about))
    console.print(draw_cluster(cluster), markup=False)
    for advice in advice_of(measurements):
        console.print(
            f"\nTCP: {advice.message}\n  on each host, as root: {advice.command}", markup=False
        )
    console.print(
        f"\nmeasured -> {out}\nnext: jaxpipe topo show {shlex.quote(str(out))}", markup=False
    )
    return 0
