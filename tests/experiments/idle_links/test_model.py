"""The model of a connection against the stored measurements of jaxpipe's own messages."""

import tomllib
from pathlib import Path

import pytest

from experiments.table import read_csv
from jaxpipe.network.congestion_window import CongestionWindow

_FOLDER = Path("experiments/idle_links")
_SEGMENT, _PACKET = 1448, 1500
_LATENCY_S, _BYTES_PER_S = 0.067, 1e9 / 8 * _SEGMENT / _PACKET
_SEND_BUFFER = 4 * 2**20


def test_the_model_is_near_the_measured_messages_after_a_silence():
    case = tomllib.loads((_FOLDER / "cases.toml").read_text())["bursts"]
    measured = read_csv(_FOLDER / "results" / "bursts.csv")[0]
    assert measured["remedy"].startswith("none"), measured
    connection = CongestionWindow(
        restart_bytes=10 * _SEGMENT,
        rtt_s=2 * _LATENCY_S,
        bytes_per_s=_BYTES_PER_S,
        buffer_bytes=_SEND_BUFFER,
    )
    bursts, now_s = [], 0.0
    for _ in range(case["num_bursts"]):
        now_s += case["pause_s"]
        bursts.append([])
        for _ in range(case["num_messages"]):
            arrives_s = connection.send(now_s, case["num_bytes"]) + _LATENCY_S
            bursts[-1].append(arrives_s - now_s)
            now_s = arrives_s + _LATENCY_S  # the answer
    assert bursts[-1][0] == pytest.approx(1.14, abs=0.01)
    assert bursts[-1][0] == pytest.approx(float(measured["after_silence_s"]), rel=0.15)
    assert bursts[-1][-1] == pytest.approx(float(measured["others_s"]), abs=0.005)
