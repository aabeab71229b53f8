"""Plots: a PNG of the asked width, or a line that says what is missing."""

import struct
import sys
from dataclasses import replace
from pathlib import Path

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
