"""Pictures of clusters."""

import re
import struct
import sys
from pathlib import Path

import pytest

from jaxpipe.errors import UserError
from jaxpipe.pictures.cluster_picture import draw_picture
from jaxpipe.topo import load, with_slower_links


@pytest.mark.parametrize("name", ["case5-worldwide", "laptop", "homogeneous:hosts=1"])
def test_a_picture_is_a_png_of_its_width(tmp_path: Path, name: str):
    draw_picture(load(name), tmp_path / "cluster.png")
    content = (tmp_path / "cluster.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", content[16:20]) == (1200,)


def texts(path: Path) -> str:
    """Return the comments of an SVG, in which matplotlib keeps the texts that it draws."""
    return "\n".join(re.findall("<!-- (.*?) -->", path.read_text(), re.DOTALL))


def test_small_matrices_have_numbers_in_units_for_people(tmp_path: Path):
    draw_picture(load("two-region"), tmp_path / "small.svg")
    shown = texts(tmp_path / "small.svg").split("\n")
    assert shown.count("1.12") == 8 + 1  # the cells between regions, and the end of the colour bar
    assert "bandwidth, Gbit/s" in shown
    draw_picture(load("case5-worldwide"), tmp_path / "large.svg")
    assert texts(tmp_path / "large.svg").split("\n").count("2") == 1


def test_no_number_has_an_exponent(tmp_path: Path):
    slow = with_slower_links(load("two-region"), scale=1e5)
    draw_picture(slow, tmp_path / "slow.svg")
    shown = texts(tmp_path / "slow.svg")
    assert not re.search(r"\de[+-]?\d", shown)
    assert "1,100,000" in shown


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'jaxpipe\[plot\]'"):
        draw_picture(load("laptop"), tmp_path / "cluster.png")
