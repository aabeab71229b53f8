"""Wrong files are many and the same each time; what commands make of them is judged."""

import math
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.chaos.fuzz import Ending, judge
from jaxpipe.chaos.harness.mutations import (
    MUTATIONS,
    File,
    Mutation,
    Value,
    awkward_values,
    mutate,
)
from jaxpipe.chaos.harness.tiny_run import tree
from jaxpipe.cli.main import main
from jaxpipe.config import config_from
from jaxpipe.topo.toml_text import toml_text

WORDS = st.text(st.characters(codec="utf-8"), max_size=5)
LEAVES = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
)


@given(written=st.dictionaries(WORDS, VALUES, max_size=4))
def test_toml_is_read_as_it_was_written(written: dict[str, Value]) -> None:
    assert tomllib.loads(toml_text(written)) == written


@pytest.mark.parametrize("value", awkward_values(), ids=lambda value: f"{value!r:.20}")
def test_awkward_values_are_toml(value: Value) -> None:
    found = tomllib.loads(toml_text({"x": value}))["x"]
    assert found == value or (isinstance(found, float) and math.isnan(found))


def config_file(dataset: Path) -> File:
    sections: dict[str, Any] = dict(tree(Path("run"), dataset))
    config_from(sections)
    return File(tree=sections, fields={name: list(fields) for name, fields in sections.items()})


def test_a_seed_gives_one_input(dataset: Path) -> None:
    file = config_file(dataset)
    before = toml_text(file.tree)
    inputs = [mutate(file, Random(seed)) for seed in range(300)]
    assert inputs == [mutate(file, Random(seed)) for seed in range(300)]
    assert toml_text(file.tree) == before
    assert len({each.data for each in inputs}) > 200


@pytest.mark.parametrize("mutation", dict.fromkeys(MUTATIONS), ids=lambda each: each.__name__)
def test_surely_wrong_configurations_are_refused(
    tmp_path: Path,
    dataset: Path,
    mutation: Mutation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.toml"
    for seed in range(3):
        broken = mutation(config_file(dataset), Random(seed))
        path.write_bytes(broken.data)
        code = main(["train", str(path), "--check"])
        err = capsys.readouterr().err
        ending = Ending(code=code, cpu_s=0.0, seconds=0.0, err=err)
        assert judge(ending, surely_wrong=broken.surely_wrong) == "", broken.what


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(code=None, cpu_s=1.0, seconds=60.0, err=""), "does not end"),
        (
            Ending(code=1, cpu_s=0.1, seconds=0.1, err="Traceback ...\nKeyError: 3\n"),
            "traceback: KeyError: 3",
        ),
        (Ending(code=1, cpu_s=0.1, seconds=0.1, err="jaxpipe: failed\n"), "exit code 1"),
        (Ending(code=-9, cpu_s=0.1, seconds=0.1, err=""), "exit code -9"),
        (Ending(code=2, cpu_s=0.1, seconds=0.1, err="jaxpipe: a\nb\n"), "not one readable line"),
        (Ending(code=2, cpu_s=2.1, seconds=9.0, err="jaxpipe: a\n"), "refused after 2.1 s"),
    ],
)
def test_wrong_ends(ending: Ending, words: str) -> None:
    assert words in judge(ending, surely_wrong=False)
