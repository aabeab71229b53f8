"""Timelines: of the asked width and format, readable with many ranks; or a line of what lacks."""

import re
import struct
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jaxpipe.errors import UserError
from jaxpipe.trace import Lane, Trace, Truth, plot
from tests.trace.strategies import span

TRACE = Trace(
    truth=Truth.SIMULATED,
    rank_names=("stage 0", "stage 1"),
    spans=(
        span(Lane.COMPUTE, 0.0, 1.0, name="forward", microbatch=0, step=3),
        span(Lane.COMPUTE, 1.0, 1.001, name="forward", microbatch=12, step=3),
        span(Lane.SEND, 1.0, 4.0, microbatch=0, peer=1, step=3),
        span(Lane.SEND, 2.0, 5.0, microbatch=1, peer=1, step=3),
        span(Lane.RECEIVE, 0.5, 4.0, rank=1, microbatch=0, peer=0, step=3),
        span(Lane.COMPUTE, 4.0, 6.0, rank=1, name="backward", microbatch=0, step=3),
        span(Lane.REDUCE, 6.0, 7.0, rank=1, name="reduce scalars", step=3),
        span(Lane.UPDATE, 7.0, 7.5, rank=1, step=3),
        span(Lane.COMPUTE, 7.5, 8.0, name="backward-input", microbatch=1, step=3),
        span(Lane.COMPUTE, 8.0, 8.5, name="backward-weight", microbatch=1, step=3),
        span(Lane.REDUCE, 8.0, 8.0, rank=1, name="reduce scalars", step=4),
    ),
)


@pytest.mark.parametrize("step", [3, 4])
def test_a_step_is_drawn_1200_pixels_wide(step: int, tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "step.png"
    plot(TRACE, path, step=step)
    header = path.read_bytes()[:20]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", header[16:20]) == (1200,)


def test_a_step_that_is_not_there_is_refused(tmp_path: Path):
    pytest.importorskip("matplotlib")
    with pytest.raises(
        UserError, match=r"`step` must be one of the trace's, not 7; choose from \[3, 4\]"
    ):
        plot(TRACE, tmp_path / "step.png", step=7)


def test_a_missing_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'jaxpipe\[plot\]'"):
        plot(TRACE, tmp_path / "step.png", step=3)


def test_a_name_is_no_formula(tmp_path: Path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "step.png"
    plot(replace(TRACE, rank_names=("$\\frac{$", "\x1b[2J$x^$")), path, step=3)
    assert path.stat().st_size > 1000


def pipelines(*, stages: int, replicas: int) -> Trace:
    """Return a trace of replicas of a pipeline: each rank computes once, for 5 ms."""
    spans = tuple(
        replace(
            span(Lane.COMPUTE, rank / 1e3, rank / 1e3 + 0.005, rank=rank, name="forward", step=1),
            stage=rank % stages,
        )
        for rank in range(stages * replicas)
    )
    names = tuple(f"stage {r % stages} on host-{r}:0" for r in range(stages * replicas))
    return Trace(truth=Truth.SIMULATED, rank_names=names, spans=spans)


def texts(path: Path) -> list[str]:
    """Return the texts that matplotlib draws into an SVG, from its comments."""
    found = re.findall("<!-- (.*?) -->", path.read_text(), re.DOTALL)
    return [line for text in found for line in text.split("\n")]


def test_ranks_of_64_have_a_row_each_grouped_by_stage(tmp_path: Path):
    pytest.importorskip("matplotlib")
    trace = pipelines(stages=8, replicas=8)
    plot(trace, tmp_path / "64.svg", step=1)
    shown = texts(tmp_path / "64.svg")
    rows = [text for text in shown if text.startswith("rank ")]
    # Down from the top: the replicas of stage 0, then those of stage 1.
    assert [int(text.split()[1]) for text in rows] == [
        8 * replica + stage for stage in range(8) for replica in range(8)
    ]
    assert rows[1] == "rank 8  host-8:0"
    assert [text for text in shown if text.startswith("stage ")] == [f"stage {i}" for i in range(8)]
    assert "time since the step began, ms" in shown
    plot(trace, tmp_path / "64.png", step=1)
    width, height = struct.unpack(">II", (tmp_path / "64.png").read_bytes()[16:24])
    assert (width, height < 1600) == (1200, True)


def test_chosen_ranks_alone_are_drawn_over_the_time_of_all(tmp_path: Path):
    pytest.importorskip("matplotlib")
    trace = pipelines(stages=2, replicas=4)
    plot(trace, tmp_path / "all.svg", step=1)
    plot(trace, tmp_path / "some.svg", step=1, ranks=(2, 5))
    every, some = texts(tmp_path / "all.svg"), texts(tmp_path / "some.svg")
    assert [text for text in some if text.startswith("rank")] == [
        "rank 2 · stage 0",
        "rank 5 · stage 1",
    ]
    assert any(text.startswith("step 1 ·") and text.endswith("· 2 of 8 ranks") for text in some)
    ticks = [[text for text in texts if re.fullmatch(r"[\d.]+", text)] for texts in (every, some)]
    assert ticks[0] == ticks[1]


def test_the_legend_is_above_the_bars(tmp_path: Path):
    pytest.importorskip("matplotlib")
    plot(TRACE, tmp_path / "step.svg", step=3)
    shown = (tmp_path / "step.svg").read_text()
    svg = ElementTree.fromstring(shown)
    space = "{http://www.w3.org/2000/svg}"
    groups = {g.get("id"): g for g in svg.iter(f"{space}g") if g.get("id")}
    bars = groups["PolyCollection_1"]
    tops = [
        float(y)
        for path in bars.iter(f"{space}path")
        for y in re.findall(r"[\d.]+ ([\d.]+)", path.get("d", ""))
    ]
    below = re.findall(
        r"translate\([\d.]+ ([\d.]+)\)", ElementTree.tostring(groups["legend_1"]).decode()
    )
    assert max(map(float, below)) < min(tops)


def test_names_of_another_format_are_refused_before_anything_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    with pytest.raises(UserError, match=r"choose from \.png, \.svg, \.pdf"):
        plot(TRACE, tmp_path / "step.bmp", step=3)
