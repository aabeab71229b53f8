"""Pictures are files of the asked format, the same each time, in units for people."""

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import ConfigError, UserError
from jaxpipe.pictures import check_format, new_figure, plain_number, save, unit_for
from jaxpipe.pictures.axis_units import BANDWIDTHS, BYTES, SECONDS
from jaxpipe.pictures.loss_picture import LossCurve, draw_losses

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF", ".PNG": b"\x89PNG"}


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_ending_names_the_format_and_the_file_repeats(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    curve = LossCurve(name="a", losses=[(1, 2.0), (2, 1.0)], held_out=[(2, 1.5)])
    for name in ("one", "two"):
        draw_losses([curve], tmp_path / f"{name}{suffix}", title="losses")
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one.startswith(MAGIC[suffix])
    assert one == two


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt"])
def test_another_ending_is_refused_with_the_choices(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(
        ConfigError, match=r"`--png` must end in .* choose from \.png, \.svg, \.pdf"
    ):
        check_format(tmp_path / name, name="--png")
    with pytest.raises(ConfigError, match=r"must end in the format"):
        save(new_figure(height_in=1.0), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'jaxpipe\[plot\]'"):
        new_figure(height_in=1.0)


def test_one_file_catches_a_missing_matplotlib() -> None:
    files = [path for root in ("jaxpipe", "topo") for path in Path(root).rglob("*.py")]
    says = {str(path) for path in files if "matplotlib is not installed" in path.read_text()}
    assert says == {"jaxpipe/pictures/canvas.py"}


def test_colours_are_those_of_the_palette() -> None:
    drawing = [
        path
        for path in Path("jaxpipe").rglob("*.py")
        if "jaxpipe.pictures" in path.read_text() and path.name != "palette.py"
    ]
    assert len(drawing) > 5
    for path in drawing:
        strings = (
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        assert not [s for s in strings if s.startswith("#") and len(s) == 7], path


@given(value=st.floats(-1e15, 1e15, allow_subnormal=False))
def test_a_plain_number_is_near_and_has_no_exponent(value: float) -> None:
    text = plain_number(value)
    assert "e" not in text
    shown = float(text.replace(",", ""))
    assert shown == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "units", "name"),
    [
        (0.35, SECONDS, "ms"),
        (1.0, SECONDS, "s"),
        (1e-9, SECONDS, "µs"),
        (5 * 2**30, BYTES, "GiB"),
        (1.2e8, BANDWIDTHS, "Mbit/s"),
        (1.4e8, BANDWIDTHS, "Gbit/s"),
    ],
)
def test_a_unit_fits_its_largest_value(value: float, units: tuple, name: str) -> None:
    assert unit_for([0.0, value], units).name == name
