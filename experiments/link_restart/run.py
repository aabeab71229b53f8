"""Measure restarts after silences, and hold them against the model.

`python -m experiments.link_restart.run` (as root) sends TCP messages between two network namespaces
with the relay's delay and bandwidth, by the kernel's own rules, after pauses of 10 ms to 4 s. It
writes `results/restart.csv`: measured and modelled seconds from the first byte's departure to the
last byte's arrival. With `model` it measures nothing, and models the stored measurements again.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median

from experiments.progress import counted
from experiments.table import Row, markdown, percent, read_csv, write_csv
from jaxpipe import topo
from jaxpipe.network.congestion_window import CongestionWindow
from jaxpipe.topo.emulate import Emulation, EngineKind, Tcp, emulated
from jaxpipe.topo.emulate.addresses import data_address
from jaxpipe.topo.emulate.packet_model import QUEUE_BYTES

_RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parents[2]
_LATENCY_S, _BYTES_PER_S = 0.060, 25e6
_WARM_UP = (0.0, 24_000_000)
"""Eight times what the link holds: the window is as large as it becomes."""
PAUSES_S = (0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
SIZES = (500_000, 2_000_000, 8_000_000)
_REPEATS = 3
_TIMEOUT_S = 300.0
_HEADERS = 20 + 20 + 12
"""Bytes of IP, TCP and its time stamps in each packet."""


def main() -> None:
    """Measure, unless that is stored, model, and write the table."""
    stored = _stored() if "model" in sys.argv[1:] else {}
    cases = counted([(tcp, num_bytes) for tcp in Tcp for num_bytes in SIZES], "measurements")
    rows = [row for tcp, num_bytes in cases for row in _rows(tcp, num_bytes, stored)]
    _RESULTS.mkdir(exist_ok=True)
    write_csv(rows, _RESULTS / "restart.csv")
    print(markdown(rows))


_Measured = Mapping[tuple[str, int, float], Mapping[str, float]]
"""Median, lowest and highest seconds, by TCP, bytes and pause."""


def _stored() -> _Measured:
    return {
        (row["tcp"], int(row["bytes"]), float(row["pause_s"])): {
            name: float(row[name]) for name in ("measured_s", "lowest_s", "highest_s")
        }
        for row in read_csv(_RESULTS / "restart.csv")
    }


def _rows(tcp: Tcp, num_bytes: int, stored: _Measured) -> list[Row]:
    # A message without a pause before each one with: its window is again as large as it becomes.
    messages = [
        message
        for pause_s in PAUSES_S
        for _ in range(_REPEATS)
        for message in (_WARM_UP, (pause_s, num_bytes))
    ]
    modelled = model(messages, tcp=tcp)
    measured = [] if stored else measure(messages, tcp=tcp)
    rows: list[Row] = []
    for number, pause_s in enumerate(PAUSES_S):
        of_pause = slice(2 * _REPEATS * number + 1, 2 * _REPEATS * (number + 1), 2)
        found = stored.get((tcp.value, num_bytes, pause_s)) or _spread(measured[of_pause])
        expected_s = median(modelled[of_pause])
        rows.append(
            {
                "tcp": tcp.value,
                "bytes": num_bytes,
                "pause_s": pause_s,
                **found,
                "modelled_s": expected_s,
                "error": percent(expected_s / found["measured_s"] - 1),
                "of lowest": percent(expected_s / found["lowest_s"] - 1),
            }
        )
    return rows


def _spread(seconds: Sequence[float]) -> Mapping[str, float]:
    return {
        "measured_s": median(seconds),
        "lowest_s": min(seconds),
        "highest_s": max(seconds),
    }


def model(messages: Sequence[tuple[float, int]], *, tcp: Tcp) -> list[float]:
    """Return the seconds of each message by the model of `jaxpipe.network`."""
    segment = tcp.mtu - _HEADERS
    rate = _BYTES_PER_S * segment / tcp.mtu
    window = CongestionWindow(
        restart_bytes=10 * segment if tcp is Tcp.KERNEL else rate * 2 * _LATENCY_S,
        rtt_s=2 * _LATENCY_S,
        bytes_per_s=rate,
        # The relay drops packets when its queue is full, and Reno halves its window then.
        largest_bytes=(2 * rate * 2 * _LATENCY_S + QUEUE_BYTES) / 2,
        buffer_bytes=_send_buffer_bytes() if tcp is Tcp.KERNEL else inf,
    )
    now_s, seconds = 0.0, []
    for pause_s, num_bytes in messages:
        start_s = now_s + pause_s
        arrives_s = window.send(start_s, num_bytes) + _LATENCY_S
        seconds.append(arrives_s - start_s)
        now_s = arrives_s + _LATENCY_S  # the receiver's answer
    return seconds


def _send_buffer_bytes() -> float:
    """Return the largest send buffer of this machine, which `kernel` leaves as it is."""
    return float(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])


def measure(messages: Sequence[tuple[float, int]], *, tcp: Tcp) -> list[float]:
    """Return the seconds of each message over an emulated link.

    Raises:
        EmulationError: the link cannot be emulated, for example without root.
    """
    cluster = topo.load(
        f"homogeneous:hosts=2,delay_ms={1e3 * _LATENCY_S:g},bandwidth_gbps={8e-9 * _BYTES_PER_S:g}"
    )
    with emulated(cluster, kind=EngineKind.RELAY, tcp=tcp) as emulation:
        receiver = _start(emulation, 1, "receive", messages)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n", "the receiver did not start"
        sender = _start(emulation, 0, "send", messages)
        started, _ = sender.communicate(timeout=_TIMEOUT_S)
        arrived, _ = receiver.communicate(timeout=_TIMEOUT_S)
    times = zip(json.loads(started), json.loads(arrived), strict=True)
    return [arrived_s - started_s for started_s, arrived_s in times]


def _start(
    emulation: Emulation, host: int, role: str, messages: Sequence[tuple[float, int]]
) -> subprocess.Popen[str]:
    program = (sys.executable, "-m", "experiments.link_restart.exchange")
    name = emulation.cluster.hosts[host].name
    return subprocess.Popen(
        [*emulation.enter(name), *program, role, data_address(1), json.dumps(messages)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
    )


if __name__ == "__main__":
    main()
