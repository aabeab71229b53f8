"""Chrome JSON: what is written is read back, and shows ranks, lanes, truth and arrows."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from jaxpipe.errors import UserError
from jaxpipe.trace import Lane, Trace, Truth, read_chrome, to_chrome, write_chrome
from tests.trace.strategies import span, traces

TRACE = Trace(
    truth=Truth.EMULATED,
    rank_names=("stage 0 in Oslo", "stage 1 in Lima"),
    spans=(
        span(Lane.COMPUTE, 0.0, 1.0, name="forward", microbatch=0),
        span(Lane.SEND, 1.0, 4.0, microbatch=0, peer=1),
        span(Lane.SEND, 2.0, 5.0, microbatch=1, peer=1),
        span(Lane.RECEIVE, 0.5, 4.0, rank=1, microbatch=0, peer=0),
    ),
)


def events(phase: str, trace: Trace = TRACE) -> list[dict[str, Any]]:
    return [each for each in to_chrome(trace)["traceEvents"] if each["ph"] == phase]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_reading_returns_what_was_written(trace: Trace, tmp_path: Path):
    path = tmp_path / "trace.json"
    write_chrome(trace, path)
    assert read_chrome(path) == trace


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_the_file_holds_the_object(trace: Trace, tmp_path: Path):
    path = tmp_path / "trace.json"
    write_chrome(trace, path)
    assert json.loads(path.read_text(encoding="utf-8")) == to_chrome(trace)


@given(trace=traces())
def test_slices_of_a_thread_do_not_overlap(trace: Trace):
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    slices = events("X", trace)
    for each, member in zip(slices, trace.spans, strict=True):
        key = (each["pid"], each["tid"])
        threads.setdefault(key, []).append((member.start_s, member.end_s))
    for members in threads.values():
        assert all(a[1] <= b[0] for a, b in pairwise(sorted(set(members))))


def test_steps_of_older_files_count_from_0(tmp_path: Path):
    document = to_chrome(TRACE)
    for added in ("about", "first_step", "bubbles"):
        del document["otherData"][added]
    (tmp_path / "old.json").write_text(json.dumps(document))
    old = read_chrome(tmp_path / "old.json")
    assert old == replace(TRACE, spans=tuple(replace(s, step=s.step + 1) for s in TRACE.spans))


def test_what_is_emulated_and_the_logged_bubbles_are_kept(tmp_path: Path):
    trace = replace(TRACE, about="links of case1", bubbles=((3, 1 / 3),))
    write_chrome(trace, tmp_path / "trace.json")
    assert read_chrome(tmp_path / "trace.json") == trace
    labels = {e["args"]["labels"] for e in events("M", trace) if e["name"] == "process_labels"}
    assert labels == {"emulated: links of case1"}


def test_truth_and_ranks_are_named():
    assert to_chrome(TRACE)["otherData"]["truth"] == "emulated"
    names = {each["pid"]: each["args"] for each in events("M") if each["name"] == "process_name"}
    assert names == {
        0: {"name": "rank 0: stage 0 in Oslo"},
        1: {"name": "rank 1: stage 1 in Lima"},
    }
    labels = [each["args"] for each in events("M") if each["name"] == "process_labels"]
    assert labels == [{"labels": "emulated"}] * 2


def test_lanes_are_threads_and_overlaps_have_their_own():
    named = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events("M")
        if each["name"] == "thread_name"
    }
    assert [named[each["pid"], each["tid"]] for each in events("X")] == [
        "compute",
        "send",
        "send 2",
        "receive",
    ]


def test_a_slice_is_a_span_in_microseconds():
    first = events("X")[0]
    assert (first["name"], first["cat"]) == ("forward 0", "compute")
    assert (first["ts"], first["dur"]) == (0.0, 1e6)
    assert first["args"]["step"] == 0
    assert first["args"]["microbatch"] == 0
    assert "peer" not in first["args"]


def test_an_arrow_leads_from_the_send_into_the_receive():
    (start,), (finish,) = events("s"), events("f")
    sent, received = events("X")[1], events("X")[3]
    assert (start["pid"], start["tid"], start["ts"]) == (sent["pid"], sent["tid"], sent["ts"])
    assert (finish["pid"], finish["tid"]) == (received["pid"], received["tid"])
    assert received["ts"] <= finish["ts"] < received["ts"] + received["dur"]
    assert start["ts"] < finish["ts"]
    assert start["id"] == finish["id"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "\u00ff",
        '{"traceEvents": [], "otherData": {"producer": "another"}}',
        '{"traceEvents": [], "otherData": {"producer": "jaxpipe"}}',
        '{"traceEvents": [], "otherData": 3}',
        json.dumps(to_chrome(TRACE)).replace('"emulated"', '"guessed"'),
        json.dumps(to_chrome(TRACE)).replace('"start_s": 0.5', '"start_s": "soon"'),
        json.dumps(to_chrome(TRACE)).replace('"ph": "M"', '"phase": "M"'),
    ],
)
def test_a_file_that_is_not_ours_is_refused(text: str, tmp_path: Path):
    path = tmp_path / "other.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(
        UserError, match=r"`path` must be a trace that jaxpipe wrote: .*other.json is not Chrome"
    ):
        read_chrome(path)


def test_a_file_that_is_missing_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"none.json cannot be read \(No such file"):
        read_chrome(tmp_path / "none.json")
