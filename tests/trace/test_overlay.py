"""Several traces in one file and one picture."""

import json
import struct
from pathlib import Path

import pytest

from jaxpipe.errors import UserError
from jaxpipe.trace import Lane, Trace, Truth, one_step, plot, plot_beside, write_overlay
from tests.trace.strategies import span

SPANS = (
    span(Lane.COMPUTE, 5.0, 7.0, step=2, name="forward", microbatch=0),
    span(Lane.SEND, 7.0, 8.0, step=2, peer=1, microbatch=0),
    span(Lane.RECEIVE, 5.5, 8.0, rank=1, step=2, peer=0, microbatch=0),
    span(Lane.COMPUTE, 1.0, 2.0, step=1),
)
MEASURED = Trace(truth=Truth.MEASURED, rank_names=("a", "b"), spans=SPANS)
SIMULATED = Trace(truth=Truth.SIMULATED, rank_names=("a", "b"), spans=SPANS)


def test_one_step_begins_at_zero_under_the_number_that_it_is_given():
    alone = one_step(MEASURED, step=2, called=9)
    assert [(s.step, s.start_s, s.end_s) for s in alone.spans] == [
        (9, 0.0, 2.0),
        (9, 2.0, 3.0),
        (9, 0.5, 3.0),
    ]


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"not 7; choose from \[1, 2\]"):
        one_step(MEASURED, step=7)


def test_every_process_and_arrow_of_the_file_is_of_one_trace(tmp_path: Path):
    path = tmp_path / "overlay.json"
    write_overlay([one_step(SIMULATED, step=2), one_step(MEASURED, step=2)], path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        0: "simulated rank 0: a",
        1: "measured rank 0: a",
        2: "simulated rank 1: b",
        3: "measured rank 1: b",
    }
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert order == {pid: pid for pid in range(4)}
    arrows = [(e["id"], e["ph"], e["pid"]) for e in events if e["ph"] in "sf"]
    assert arrows == [(0, "s", 0), (0, "f", 2), (1, "s", 1), (1, "f", 3)]


def test_pictures_stand_under_each_other(tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot(MEASURED, tmp_path / "one.png", step=2)
    plot_beside((MEASURED, SIMULATED), tmp_path / "both.png", step=2)
    one, both = (
        struct.unpack(">II", (tmp_path / name).read_bytes()[16:24])
        for name in ("one.png", "both.png")
    )
    assert one[0] == both[0] == 1200
    assert both[1] > 1.5 * one[1]
