"""Table of the use of links, summed over the reports of a run."""

from collections.abc import Mapping, Sequence

from jaxpipe.trace.link_use import LinkReport, LinkUse, Traffic


def link_table(reports: Sequence[LinkReport], *, ranks: bool = False) -> list[str]:
    """Return the lines of a table of all links, summed over reports."""
    rows: dict[tuple[str, str], dict[str, LinkUse]] = {}
    for report in reports:
        for link in report.ranks if ranks else report.regions:
            row = rows.setdefault((link.source, link.to), {})
            row[link.traffic] = _added(row[link.traffic], link) if link.traffic in row else link
    width = max((len(f"{source} -> {to}") for source, to in rows), default=0)
    head = "".join(f"{traffic.value:>13}" for traffic in Traffic)
    lines = [f"{'':<{width}}{head}{'seconds':>11}{'goodput':>13}{'of planned':>12}"]
    for (source, to), row in rows.items():
        lines.append(f"{f'{source} -> {to}':<{width}}{_cells(row)}")
    return lines


def _added(one: LinkUse, other: LinkUse) -> LinkUse:
    """Return the sum of two uses of a link; seconds at the planned bandwidth add up as well."""
    seconds, timed_bytes = one.seconds + other.seconds, one.timed_bytes + other.timed_bytes
    planned_s = sum((links.efficiency or 0.0) * links.seconds for links in (one, other))
    return LinkUse(
        source=one.source,
        to=one.to,
        traffic=one.traffic,
        num_messages=one.num_messages + other.num_messages,
        num_bytes=one.num_bytes + other.num_bytes,
        timed_bytes=timed_bytes,
        seconds=seconds,
        goodput_bytes_per_s=timed_bytes / seconds if seconds else None,
        efficiency=planned_s / seconds if seconds and planned_s else None,
    )


def _cells(row: Mapping[str, LinkUse]) -> str:
    total = row["all"]
    amounts = [row[kind].num_bytes if kind in row else 0 for kind in Traffic]
    speed = total.goodput_bytes_per_s
    shown = "-" if speed is None else f"{speed / 1e6:.4g} MB/s"
    share = "-" if total.efficiency is None else f"{total.efficiency:.1%}"
    sizes = "".join(f"{f'{amount / 1e6:.4g} MB':>13}" for amount in amounts)
    return f"{sizes}{f'{total.seconds:.4g} s':>11}{shown:>13}{share:>12}"
