"""The picture of a comparison: bars of each system, in units for people."""

import re
from pathlib import Path

import pytest

from jaxpipe.baselines.compare.compare_picture import draw
from jaxpipe.baselines.compare.measured import MeasuredStep, MeasuredSystem, RankPart
from jaxpipe.baselines.systems import System
from jaxpipe.trace import Truth


def measured(
    system: System, *, step_s: float, slow_bytes: float, is_counted: bool
) -> MeasuredSystem:
    part = RankPart(compile_s=1.0, peak_bytes=3 * 2**30, sent_bytes=0.0, slow_bytes=slow_bytes)
    return MeasuredSystem(
        system=system,
        strategy="",
        tokens_per_step=1,
        steps=(MeasuredStep(step=1, loss=1.0, step_s=step_s),),
        ranks=(part,),
        is_counted=is_counted,
        search_s=None,
    )


def test_each_quantity_has_one_unit_and_no_exponent(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    systems = [
        measured(System.PIPELINE, step_s=0.21, slow_bytes=2.0e6, is_counted=False),
        measured(System.DDP, step_s=0.6, slow_bytes=1.2e9, is_counted=True),
    ]
    draw(systems, tmp_path / "both.svg", truth=Truth.MEASURED)
    texts = re.findall("<!-- (.*?) -->", (tmp_path / "both.svg").read_text(), re.DOTALL)
    for words in ("time of a step, ms (measured)", "210", "1.12", "0.00186", "3"):
        assert words in texts
    assert any(text.startswith("over slow links, GiB a step") for text in texts)
    assert not [text for text in texts if re.search(r"\de[+-]", text)]
    draw(systems, tmp_path / "both.png", truth=Truth.MEASURED)
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
