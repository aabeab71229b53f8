"""`jaxpipe plan --pareto` draws the front, and refuses what has none."""

from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.pictures.pareto_picture import ParetoPoint, draw_front
from tests.propose.test_worth import CLUSTER


def planned(tmp_path: Path, *words: str) -> int:
    (tmp_path / "priced.toml").write_text(CLUSTER)
    small = (
        f"plan --cluster {tmp_path / 'priced.toml'} --model tiny --batch 16 --budget 0.5 "
        "--set paced.ideal=true"
    )
    return main([*small.split(), "--out", str(tmp_path / "plan.toml"), *words])


def test_the_front_of_a_search_is_drawn(tmp_path: Path):
    assert planned(tmp_path, "--objective", "dollars", "--pareto", str(tmp_path / "p.svg")) == 0
    assert (tmp_path / "p.svg").read_text().endswith("</svg>\n")


def test_the_same_front_is_the_same_file(tmp_path: Path):
    front = [ParetoPoint(1.0, 3.0, "4 devices"), ParetoPoint(2.0, 1.0, "2 devices")]
    for name in ("a.svg", "b.svg"):
        draw_front(front, front[1], tmp_path / name, title="tiny")
    draw_front(front[:1], front[0], tmp_path / "c.svg", title="tiny")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "c.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("--pareto", "p.svg"),
            "`--pareto` (p.svg) draws seconds against dollars or energy",
        ),
        (("--objective", "dollars", "--pareto", "p.txt"), "`--pareto` must end in the format"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_search(
    tmp_path: Path,
    words: tuple[str, ...],
    expected: str,
    capsys: pytest.CaptureFixture[str],
):
    assert planned(tmp_path, *words) != 0
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "plan.toml").exists()
