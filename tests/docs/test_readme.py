"""The README: short, with links, commands, recorded output and Python that work."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.record import FOLDER
from jaxpipe.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_its_links_lead_to_files():
    assert len(README.splitlines()) <= 150
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_has_the_commands_that_set_the_project_up():
    assert "\n    make train\n" in README
    assert "\n    make test\n" in README
    assert "\nmake test\n" in (ROOT / ".ci/run").read_text()


def test_the_output_in_the_readme_is_recorded_and_in_order():
    shown = re.search(r"<!-- recorded: train -->\n(.*?)<!-- end -->", README, re.S)
    assert shown is not None
    recorded_lines = iter((FOLDER / "train.txt").read_text().splitlines())
    for line in shown[1].splitlines():
        if line.strip() not in ("...", ""):
            assert line.removeprefix("    ") in recorded_lines, line


def test_the_files_to_read_first_are_six_with_a_line_for_each():
    listed = README.partition("## Read these six files first")[2].partition("\n## ")[0]
    files = re.findall(r"^\| \[(\w+\.py)\]\((jaxpipe/[\w/]+\.py)\) \| \S", listed, re.M)
    assert len(files) == 6
    assert [name for name, path in files] == [Path(path).name for _, path in files]


@pytest.mark.slow
def test_the_python_in_the_readme_runs(tmp_path: Path):
    (code,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    assert "train.steps=20" in code
    (tmp_path / "readme.py").write_text(code.replace("train.steps=20", "train.steps=2"))
    assert main(["data", "prepare", "--out", str(tmp_path / "data/topics")]) == 0
    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for shown in ("gpipe 0.", "zb-h1 0.", "s, simulated", "2 stages x 2 replicas"):
        assert shown in done.stdout
    for file in done.stdout.splitlines()[-1].split():
        assert (tmp_path / file).is_file(), file
