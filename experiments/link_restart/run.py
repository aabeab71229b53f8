"""Measure restarts after silences, and hold them against the model.

`python -m experiments.link_restart.run` (as root) sends TCP messages between two network namespaces
with the relay's delay and bandwidth, by the kernel's own rules, after pauses of 10 ms to 2 s. It
writes `results/restart.csv`: measured and modelled seconds from the first byte's departure to the
last byte's arrival.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.table import Row, markdown, percent, write_csv
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
    """Measure, model, and write the table."""
    rows = [row for tcp in Tcp for num_bytes in SIZES for row in _rows(tcp, num_bytes)]
    _RESULTS.mkdir(exist_ok=True)
    write_csv(rows, _RESULTS / "restart.csv")
    print(markdown(rows))


def _rows(tcp: Tcp, num_bytes: int) -> list[Row]:
    # A message without a pause before each one with: its window is again as large as it becomes.
    messages = [
        message
        for pause_s in PAUSES_S
        for _ in range(_REPEATS)
        for message in (_WARM_UP, (pause_s, num_bytes))
    ]
    measured = measure(messages, tcp=tcp)
    modelled = model(messages, tcp=tcp)
    rows: list[Row] = []
    for number, pause_s in enumerate(PAUSES_S):
        of_pause = slice(2 * _REPEATS * number + 1, 2 * _REPEATS * (number + 1), 2)
        found_s, expected_s = median(measured[of_pause]), median(modelled[of_pause])
        rows.append(
            {
                "tcp": tcp.value,
                "bytes": num_bytes,
                "pause_s": pause_s,
                "measured_s": found_s,
                "lowest_s": min(measured[of_pause]),
                "highest_s": max(measured[of_pause]),
                "modelled_s": expected_s,
                "error": percent(expected_s / found_s - 1),
            }
        )
    return rows


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
    )
    now_s, seconds = 0.0, []
    for pause_s, num_bytes in messages:
        start_s = now_s + pause_s
        arrives_s = window.send(start_s, num_bytes) + _LATENCY_S
        seconds.append(arrives_s - start_s)
        now_s = arrives_s + _LATENCY_S  # the receiver's answer
    return seconds


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
