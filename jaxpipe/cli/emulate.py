"""`jaxpipe emulate`: runs a command over an emulated cluster, and prints its traffic."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe import topo
from jaxpipe.errors import ConfigError, RunError
from jaxpipe.run.terminal.console import errors
from jaxpipe.runtime.process.process_signals import die_with_parent
from jaxpipe.topo.emulate import (
    Emulation,
    EmulationError,
    EngineKind,
    NetworkTraffic,
    Tcp,
    emulated,
)
from jaxpipe.topo.emulate.mpi import LINKS
from jaxpipe.topo.emulate.rank_watch import RankWatch

_POLL_S = 0.2
_SECONDS_TO_END = 5.0


class EngineOption(Enum):
    """How links are emulated; `auto` takes the first of netem, relay and htb that works here."""

    AUTO = "auto"
    NETEM = "netem"
    HTB = "htb"
    RELAY = "relay"
    UNSHAPED = "unshaped"


class TcpStart(Enum):
    """How TCP begins on a link, and after the link was idle."""

    STEADY = "steady"
    KERNEL = "kernel"


def emulate(  # noqa: PLR0913  each is an option of the command line
    cluster: tyro.conf.Positional[str],
    command: tyro.conf.Positional[tuple[str, ...]],
    *,
    scale: float = 1.0,
    engine: EngineOption = EngineOption.AUTO,
    jitter_ms: float = 0.0,
    loss: float = 0.0,
    tcp: TcpStart = TcpStart.STEADY,
    sysctls: Annotated[tuple[str, ...], tyro.conf.arg(name="sysctl", metavar="NAME=VALUE")] = (),
    own_disks: Annotated[tuple[Path, ...], tyro.conf.arg(name="own-disk", metavar="FOLDER")] = (),
    plan: Path | None = None,
    inside: Annotated[str | None, tyro.conf.arg(name="in", metavar="HOST")] = None,
) -> int:
    """Run a command on this machine over the emulated links of a cluster.

    Each host is a network namespace. Every `mpirun` in the command starts its ranks in them, with
    Open MPI or MPICH. Needs root. Latency and bandwidth are emulated per direction; everything is
    removed afterwards.

    Args:
        cluster: one of the catalogue, such as `two-region`, or a TOML file.
        command: after `--`, such as `-- jaxpipe train my.toml` or `-- mpirun -n 4 PROGRAM`.
        scale: multiplies latencies, and seconds per byte.
        engine: tc netem; htb (bandwidth only); a relay over TUN devices; or unshaped links.
        jitter_ms: maximum deviation of the latency of a packet.
        loss: the fraction of packets that are lost, such as 0.001.
        tcp: steady, always at the full rate; or kernel, which starts slowly after a link was idle.
        sysctls: a setting of TCP on all hosts, such as `net.ipv4.tcp_slow_start_after_idle=0`; may
            be repeated.
        own_disks: a folder of which each host has its own, empty at first; may be repeated.
        plan: a plan file with the placement of ranks. By default that of the configuration in a
            `jaxpipe train` or `compare` command, or else rank r on the host of device r.
        inside: the host that runs the command itself, by default the machine.
    """
    if not command:
        raise ConfigError("`jaxpipe emulate CLUSTER` runs a command: add `-- COMMAND`")
    with ended_by_signals() as check_signals:
        try:
            described = _cluster(cluster, scale=scale)
            placed = _placement(cluster, command, plan)
            network = emulated(
                described,
                kind=EngineKind(engine.value),
                jitter_s=jitter_ms / 1e3,
                loss=loss,
                tcp=Tcp(tcp.value),
                sysctls=dict(_setting(setting) for setting in sysctls),
                devices=placed,
            )
            with network as emulation:
                emulation.give_disks(own_disks)
                _introduce(emulation, scale=scale)
                words = (*(emulation.enter(inside) if inside else ()), *command)
                return _run(emulation, words, check_signals, scale=scale)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        except EmulationError as error:
            raise RunError(str(error)) from error


def _setting(text: str) -> tuple[str, str]:
    """Return name and value of a setting.

    >>> _setting("net.ipv4.tcp_slow_start_after_idle=0")
    ('net.ipv4.tcp_slow_start_after_idle', '0')
    """
    name, _, value = text.partition("=")
    return name, value


def _cluster(name: str, *, scale: float) -> topo.Cluster:
    return topo.with_slower_links(topo.load(name), scale=scale)


def _placement(name: str, command: Sequence[str], plan: Path | None) -> tuple[int, ...] | None:
    """Return the device of each rank: by the plan file, or by the configuration in the command.

    Raises:
        ValueError: that is for another cluster.
    """
    typed = _configuration(command)
    if plan is None and typed is None:
        return None
    # Slow; `--help` can do without.
    from jaxpipe.config import load_config
    from jaxpipe.plan import read_plan
    from jaxpipe.propose.resolve import plan_from

    if plan is not None:
        placed = read_plan(plan, topo.load(name))
    else:
        assert typed is not None
        path, settings = typed
        config = load_config(path, settings, notice=None)  # the command says what it overrides
        if not _is_same_cluster(config.plan.cluster, name):
            raise ValueError(
                f"`plan.cluster` of {path} must be the emulated cluster, {name!r}, not "
                f"{config.plan.cluster!r}; emulate that one, or change the field"
            )
        placed = plan_from(config)
    return tuple(placed.device(rank) for rank in range(placed.num_ranks))


def _is_same_cluster(first: str, second: str) -> bool:
    """Return whether two names are of one cluster: equal, or two ways to write one path.

    >>> _is_same_cluster("here/laptop.toml", "./here/laptop.toml"), _is_same_cluster("a", "b")
    (True, False)
    """
    return first == second or Path(first).absolute() == Path(second).absolute()


def _configuration(command: Sequence[str]) -> tuple[Path, tuple[str, ...]] | None:
    """Return the file and the settings of the configuration in `jaxpipe train` or `compare`.

    >>> _configuration(["jaxpipe", "train", "my.toml", "--set", "train.steps=3"])
    (PosixPath('my.toml'), ('train.steps=3',))
    >>> _configuration(["mpirun", "-n", "2", "hostname"])
    """
    words = list(command)
    verbs = [i for i, word in enumerate(words) if word in ("train", "compare")]
    if not any(Path(word).name == "jaxpipe" for word in words) or not verbs:
        return None
    path = next((Path(word) for word in words[verbs[0] :] if word.endswith(".toml")), None)
    changes = tuple(b for a, b in pairwise(words) if a == "--set")
    return None if path is None else (path, changes)


def _introduce(emulation: Emulation, *, scale: float) -> None:
    cluster, choice = emulation.cluster, emulation.choice
    times = "" if scale == 1 else f", {scale:g} times slower"
    errors.print(
        f"emulated: {len(cluster.hosts)} hosts of cluster {cluster.name}{times}, each a "
        f"network namespace, joined by {choice.kind.value} ({choice.why})",
        markup=False,
    )
    if lacking := _lacking(choice.kind):
        errors.print(f"emulated: {lacking.upper()} BY {choice.kind.value}", markup=False)


def _lacking(kind: EngineKind) -> str:
    """Return which properties of links an engine does not emulate."""
    return {
        EngineKind.HTB: "latency is not emulated",
        EngineKind.UNSHAPED: "latency and bandwidth are not emulated",
    }.get(kind, "")


def _links(emulation: Emulation, *, scale: float) -> str:
    """Return the label of the links for the results of processes inside."""
    kind, times = emulation.choice.kind, "" if scale == 1 else f", {scale:g} times slower"
    lacking = f" ({_lacking(kind)})" if _lacking(kind) else ""
    return (
        f"links of cluster {emulation.cluster.name}{times}, between network namespaces joined by "
        f"{kind.value}{lacking}"
    )


def _run(
    emulation: Emulation,
    words: Sequence[str],
    check_signals: Callable[[], None],
    *,
    scale: float,
) -> int:
    """Run the command, print the traffic, and return the exit code.

    Raises:
        RunError: ranks ran outside of their namespaces, or messages bypassed the links.
    """
    # Not SIGTERM: its links end with this process, and no step, after which a run could stop in
    # order, would end any more. What the command has started ends with it in turn.
    end_with_us = partial(die_with_parent, signal.SIGKILL)
    with emulation.watch() as watch:
        try:
            process = subprocess.Popen(
                words,
                env={**os.environ, **emulation.settings, LINKS: _links(emulation, scale=scale)},
                preexec_fn=end_with_us,  # noqa: PLW1509  it only calls prctl
            )
        except OSError as error:
            raise ConfigError(f"`{words[0]}` cannot be run: {error.strerror}") from error
        try:
            code = _wait(process, watch, check_signals)
        finally:
            _end(process)
    _check_places(emulation, watch)
    traffic = emulation.traffic()
    _print_traffic(emulation, watch, traffic)
    _check_bytes(emulation, watch, traffic)
    return code if code >= 0 else 128 - code


def _wait(
    process: subprocess.Popen[bytes], watch: RankWatch, check_signals: Callable[[], None]
) -> int:
    while True:
        check_signals()
        try:
            return process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            if watch.astray:
                return 1


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _check_places(emulation: Emulation, watch: RankWatch) -> None:
    if not watch.astray:
        return
    rank, host = next(iter(watch.astray.items()))
    names = [host.name for host in emulation.cluster.hosts]
    where = "on the machine itself" if host is None else f"on {names[host]}"
    devices = emulation.devices
    device = emulation.cluster.devices[devices[rank]] if rank < len(devices) else None
    belongs = "nowhere: the plan has no such rank" if device is None else f"on {device.host}"
    raise RunError(
        f"rank {rank} ran {where}, and belongs {belongs}: ranks must run in their hosts' "
        "namespaces; leave hosts, mapping and launcher out of the options of `mpirun`"
    )


def _print_traffic(emulation: Emulation, watch: RankWatch, traffic: NetworkTraffic) -> None:
    hosts = emulation.cluster.host_of
    ranks: dict[int, list[int]] = {}
    for rank in sorted(watch.seen):
        ranks.setdefault(hosts[emulation.devices[rank]], []).append(rank)
    lines = [*host_lines(traffic, ranks), *link_lines(traffic)]
    errors.print("\n".join(("", *lines)), markup=False)


def _check_bytes(emulation: Emulation, watch: RankWatch, traffic: NetworkTraffic) -> None:
    hosts = emulation.cluster.host_of
    used = {hosts[emulation.devices[rank]] for rank in watch.seen}
    if len(used) > 1 and not traffic.sent_bytes:
        raise RunError(
            f"`link0` of no host has sent a byte, though ranks ran on {len(used)} hosts: messages "
            "must cross the emulated links; does this MPI use another path than TCP?"
        )


@contextmanager
def ended_by_signals() -> Iterator[Callable[[], None]]:
    """Make SIGINT, SIGTERM and SIGHUP raise `SystemExit`, so that all `finally` blocks run.

    Yields a function that raises again for a signal whose exception was lost. Signals that this
    process ignores stay ignored, as `nohup` and a shell's `&` expect.
    """
    received: list[int] = []

    def check_signals() -> None:
        if received:
            raise SystemExit(128 + received[0])

    def stop(number: int, _: object) -> None:
        # Python discards an exception that is raised in a callback of `fork` or in a finalizer,
        # and a signal can arrive there: a loop that waits has to call `check_signals`.
        received.append(number)
        check_signals()

    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    previous = {n: handler for n, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield check_signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


_MOST_LINKS = 40


def host_lines(traffic: NetworkTraffic, ranks: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Yield a line for each host: its interface's counters, and the ranks seen there."""
    width = max(4, *(len(host.host) for host in traffic.hosts))
    yield f"{'host':<{width}}  {'sent bytes':>15}  {'received bytes':>15}  ranks seen"
    for number, host in enumerate(traffic.hosts):
        seen = " ".join(map(str, ranks.get(number, ()))) or "-"
        yield f"{host.host:<{width}}  {host.sent_bytes:>15,}  {host.received_bytes:>15,}  {seen}"


def link_lines(traffic: NetworkTraffic) -> Iterator[str]:
    """Yield a line for each link that something crossed, the busiest first."""
    used = sorted(
        (link for link in traffic.links if link.num_bytes or link.dropped_packets),
        key=lambda link: -link.num_bytes,
    )
    if not used:
        return
    names = [host.host for host in traffic.hosts]
    label = [f"{names[link.source]} -> {names[link.destination]}" for link in used]
    width = max(4, *map(len, label[:_MOST_LINKS]))
    yield ""
    yield f"{'link':<{width}}  {'bytes':>15}  {'dropped packets':>15}"
    for link, name in zip(used[:_MOST_LINKS], label, strict=False):
        yield f"{name:<{width}}  {link.num_bytes:>15,}  {link.dropped_packets:>15,}"
    if len(used) > _MOST_LINKS:
        rest = sum(link.num_bytes for link in used[_MOST_LINKS:])
        yield f"and {len(used) - _MOST_LINKS} more links, {rest:,} bytes"
