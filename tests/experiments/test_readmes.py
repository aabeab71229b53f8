"""The READMEs of experiments link to files that exist, and the index lists every experiment."""

import re
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
TEXTS = sorted(path for path in EXPERIMENTS.rglob("*.md") if "results" not in path.parts)
WORDS = 470
"""A README has about 400 words; what does not fit stands in `NOTES.md` beside it."""

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(EXPERIMENTS)))
def test_links_lead_somewhere(text: Path):
    targets = [link for link in LINK.findall(text.read_text()) if "://" not in link]
    missing = [target for target in targets if not (text.parent / target).exists()]
    assert missing == []


def test_the_index_has_four_lines_for_every_experiment():
    index = (EXPERIMENTS / "README.md").read_text()
    entries = re.findall(r"^### \[(\w+)\]\(\1/README\.md\)\n\n(.*?)(?=\n\n)", index, re.M | re.S)
    folders = {path.parent.name for path in EXPERIMENTS.glob("*/README.md")}
    assert {name for name, _ in entries} == folders - {"notebooks"}
    assert len(entries) == len(folders) - 1 >= 11
    for name, lines in entries:
        labels = re.findall(r"^- \*\*([\w ]+)\*\*: \S", lines, re.M)
        assert labels == ["Claim", "Result", "Truth level", "Status"], name


def test_every_experiment_says_how_to_run_it():
    for path in EXPERIMENTS.glob("*/README.md"):
        if path.parent.name != "notebooks":
            assert "**Claim" in path.read_text(), path
            assert "How to run" in path.read_text(), path


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: str(path.relative_to(EXPERIMENTS)))
def test_commands_stand_in_blocks(text: Path):
    assert re.findall(r"^(?:python -m experiments|jaxpipe \w+ -).*", text.read_text(), re.M) == []


def test_every_readme_is_short():
    for path in EXPERIMENTS.glob("*/README.md"):
        words = [word for word in path.read_text().split() if word.strip("|-")]
        assert len(words) <= WORDS, f"{path} has {len(words)} words: move details to NOTES.md"
