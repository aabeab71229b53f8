"""Check the TCP settings of hosts against the links between them: those of a job, or of a file."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxpipe.doctor.facts import RankFacts
from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.topo import Cluster
from jaxpipe.topo.host_tcp import TcpSettings, tcp_advice
from jaxpipe.topo.route import routes_to


def judge_measured_links(ranks: Sequence[RankFacts]) -> tuple[Finding, ...]:
    """Return the findings about the settings of a job's hosts and its measured links."""
    first = ranks[0].host
    linked = [
        (2 * facts.latency_s, facts.bytes_per_s)
        for facts in ranks
        if facts.host != first and facts.latency_s is not None and facts.bytes_per_s is not None
    ]
    if not linked:
        return ()
    return tuple(
        _findings(
            [facts.tcp for facts in ranks],
            rtt_s=max(rtt_s for rtt_s, _ in linked),
            bytes_in_flight=max(rtt_s * bytes_per_s for rtt_s, bytes_per_s in linked),
        )
    )


def judge_links_of(cluster: Cluster, settings: Sequence[TcpSettings | None]) -> tuple[Finding, ...]:
    """Return the findings about some hosts' settings, if their links are those of a cluster."""
    host = np.array(cluster.host_of)
    is_between = host[:, None] != host[None, :]
    if not is_between.any():
        return ()
    rtt_s = (cluster.latency_s + cluster.latency_s.T)[is_between]
    in_flight = rtt_s * cluster.alone_bytes_per_s[is_between]
    return tuple(
        _findings(settings, rtt_s=float(rtt_s.max()), bytes_in_flight=float(in_flight.max()))
    )


def judge_ways_to(cluster: Cluster, *, here: str) -> tuple[Finding, ...]:
    """Return the findings about the ways to the other hosts of a cluster: its names, interfaces.

    A cluster whose hosts have no addresses here is a plan for elsewhere, which is no fault.
    """
    ways = routes_to(host.name for host in cluster.hosts if host.name != here)
    known = [way for way in ways.values() if way is not None]
    if not known:
        return ()
    lost = [host for host, way in ways.items() if way is None]
    findings = [Finding(about="ways", health=Health.OK, message="; ".join(map(str, known)))]
    if lost:
        findings.append(
            Finding(
                about="ways",
                health=Health.SLOW,
                message=f"no address or no way is known to {', '.join(lost)}",
                fix="add them to /etc/hosts or the name service of each host",
            )
        )
    return tuple(findings)


def _findings(
    settings: Sequence[TcpSettings | None], *, rtt_s: float, bytes_in_flight: float
) -> Iterator[Finding]:
    advice = tuple(tcp_advice(settings, rtt_s=rtt_s, bytes_in_flight=bytes_in_flight))
    for advised in advice:
        yield Finding(
            about="TCP",
            health=Health.SLOW,
            message=advised.message,
            fix=f"on each host, as root: {advised.command}",
        )
    if not advice and any(setting is not None for setting in settings):
        message = f"its settings suit round trips of up to {1e3 * rtt_s:.3g} ms"
        yield Finding(about="TCP", health=Health.OK, message=message)
