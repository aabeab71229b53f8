"""TCP settings of a host that decide how fast long links are, and the commands that fix them.

Two defaults of Linux are made for short links. A connection that was idle for longer than its
retransmission timeout starts slowly again (`tcp_slow_start_after_idle`); and it has at most as many
bytes in flight as its buffers hold (`tcp_rmem`, `tcp_wmem`), so that it carries no more than that
per round trip::

    4 MiB of buffer, 2.6 MB of it usable, round trip of 134 ms      0.16 of 1 Gbit/s (measured)

Source: Linux, Documentation/networking/ip-sysctl.rst.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path

_FOLDER = Path("/proc/sys/net/ipv4")
_NEVER_RESTARTS = frozenset({"bbr"})
"""Congestion controls that ignore the setting: they pace by a measured bandwidth."""
_LONG_RTT_S = 2e-3
"""On shorter round trips neither default costs what is worth a command."""
_HELD = 2
"""Bytes of buffer for a byte in flight: the kernel counts its own memory in as well."""
SEGMENT_BYTES, FIRST_SEGMENTS = 1448, 10
"""The segment of Ethernet with time stamps, and the first window in segments (RFC 6928)."""
FIRST_WINDOW_BYTES = FIRST_SEGMENTS * SEGMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSettings:
    """The settings of a host, from /proc/sys/net/ipv4."""

    slow_start_after_idle: bool
    congestion_control: str
    largest_receive_bytes: int
    largest_send_bytes: int

    @property
    def restarts(self) -> bool:
        """Whether a connection starts slowly after a silence."""
        return self.slow_start_after_idle and self.congestion_control not in _NEVER_RESTARTS

    @property
    def buffer_bytes(self) -> int:
        """The smaller one of the two buffers."""
        return min(self.largest_receive_bytes, self.largest_send_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAdvice:
    """What a setting costs, and the command, for root on each host, that changes it."""

    message: str
    command: str


def read_tcp_settings(folder: Path = _FOLDER) -> TcpSettings | None:
    """Return the settings of this host; None where the kernel does not state them.

    >>> read_tcp_settings(Path("/no/such/folder"))
    """
    try:
        return TcpSettings(
            slow_start_after_idle=(folder / "tcp_slow_start_after_idle").read_text().strip() == "1",
            congestion_control=(folder / "tcp_congestion_control").read_text().strip(),
            # Three numbers: least, default, most.
            largest_receive_bytes=int((folder / "tcp_rmem").read_text().split()[2]),
            largest_send_bytes=int((folder / "tcp_wmem").read_text().split()[2]),
        )
    except (OSError, ValueError, IndexError):
        return None


def tcp_advice(
    settings: Iterable[TcpSettings | None], *, rtt_s: float, bytes_in_flight: float
) -> Iterator[TcpAdvice]:
    """Yield what the hosts' settings cost on their links.

    `rtt_s` is the longest round trip between them, and `bytes_in_flight` the largest
    bandwidth-delay product: what a link holds in both directions.
    """
    known = [setting for setting in settings if setting is not None]
    if not known or rtt_s < _LONG_RTT_S:
        return
    if any(setting.restarts for setting in known):
        yield TcpAdvice(
            message=f"a connection that was idle starts with {FIRST_WINDOW_BYTES / 1e3:.3g} kB in "
            f"a round trip of {1e3 * rtt_s:.3g} ms, except those that jaxpipe keeps warm",
            command="sysctl -w net.ipv4.tcp_slow_start_after_idle=0",
        )
    smallest = min(setting.buffer_bytes for setting in known)
    needed = _HELD * bytes_in_flight
    if needed > smallest:
        # A power of two above: a measured link may be slow because of these buffers.
        size = 2 ** ceil(log2(2 * needed))
        yield TcpAdvice(
            message=f"a connection needs {needed / 2**20:.3g} MiB of buffers for the link that "
            f"holds most, and has {smallest / 2**20:.3g} MiB",
            command=f'sysctl -w net.ipv4.tcp_rmem="4096 131072 {size}" '
            f'net.ipv4.tcp_wmem="4096 16384 {size}"',
        )
