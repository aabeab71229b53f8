"""`jaxpipe init`: a configuration that loads, shows every section and overwrites nothing."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from jaxpipe.cli.init import starter_text
from jaxpipe.cli.main import main
from jaxpipe.config import check_run, config_from, load_config, to_tree
from jaxpipe.config.read import Config
from jaxpipe.propose.resolve import plan_from
from jaxpipe.topo.toml_text import parse_toml

TEXT = starter_text(run=Path("run"), data=Path("data"))
_OPTIONAL = re.compile(r"^# (?=\w+ = )", re.MULTILINE)
OPTIONAL = [match.start() for match in _OPTIONAL.finditer(TEXT)]


def test_it_shows_every_section_with_its_defaults() -> None:
    tree = parse_toml(TEXT)
    assert set(tree) == {section.name for section in fields(Config)}
    needed = {section: tree[section] for section in ("run", "data", "model")}
    # As JSON, so that lists and tuples are alike.
    defaults = json.loads(json.dumps(to_tree(config_from(needed))))
    changed = {
        f"{section}.{name}"
        for section, values in tree.items()
        for name, value in values.items()
        if section not in needed and value != defaults[section][name]
    }
    assert not changed


@pytest.mark.parametrize("start", OPTIONAL, ids=lambda start: TEXT[start + 2 :].split(" ")[0])
def test_each_optional_field_can_be_switched_on(start: int) -> None:
    text = TEXT[:start] + TEXT[start + 2 :]
    tree = parse_toml(text)
    config = config_from(tree)
    if config.plan.file is not None:  # it takes the place of the others, as the comment says
        assert config.plan.file == "plan.toml"
    elif config.paced.profile is None:  # else there would have to be one
        # A fixed speed: none is measured.
        paced = replace(config.paced, tflops=0.01)
        plan = replace(config.plan, search_s=0.1)
        plan_from(replace(config, paced=paced, plan=plan))


def test_lines_fit_a_hundred_columns_and_nothing_is_left_to_fill_in() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 100] == []
    assert not re.search(r"[{}]", TEXT)


@pytest.mark.parametrize("name", ["mine", "with space", 'quote"and\\slash', "naïve-日本-🚀"])
def test_a_starter_is_shown_and_ready_to_train(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 0
    printed = capsys.readouterr().out
    assert f"configuration -> {name}/config.toml" in printed
    assert "next: jaxpipe data prepare --out " in printed

    Path("text.txt").write_text("a line of text to train on\n" * 4000)
    assert main(["data", "prepare", "--out", f"{name}/data", "--source", "text.txt"]) == 0
    assert main(["show", f"{name}/config.toml"]) == 0
    shown = capsys.readouterr().out
    assert "\nplanned: " in shown
    assert "on cluster this-machine" in shown
    config = load_config(f"{name}/config.toml")
    assert config.run.folder == f"{name}/run"
    assert check_run(config, resume=False) is None


def test_it_writes_here_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert load_config("config.toml").data.folder == "data"


def test_it_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text("mine")
    assert main(["init"]) == 2
    assert capsys.readouterr().err == (
        "jaxpipe: `jaxpipe init` overwrites nothing: config.toml exists; name another folder\n"
    )
    assert (tmp_path / "config.toml").read_text() == "mine"
    assert main(["init", "config.toml"]) == 2
    assert "config.toml exists" in capsys.readouterr().err
    assert main(["init", "config.toml/inside"]) == 2
    assert "cannot write config.toml/inside/config.toml" in capsys.readouterr().err
