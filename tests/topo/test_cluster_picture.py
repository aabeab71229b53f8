"""Pictures of clusters."""

import struct
import sys
from pathlib import Path

import pytest

from topo import load
from topo.cluster_picture import draw_picture


@pytest.mark.parametrize("name", ["case5-worldwide", "laptop", "homogeneous:hosts=1"])
def test_a_picture_is_a_png_of_its_width(tmp_path: Path, name: str):
    draw_picture(load(name), tmp_path / "cluster.png")
    content = (tmp_path / "cluster.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", content[16:20]) == (1200,)


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"pip install 'jaxpipe\[plot\]'"):
        draw_picture(load("laptop"), tmp_path / "cluster.png")
