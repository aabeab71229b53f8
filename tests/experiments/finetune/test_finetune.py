"""The parts of the experiment that train nothing: texts, and the table of presets."""

import gzip
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.finetune import presets, texts
from jaxpipe.models import preset_config

ROOT = Path(__file__).parents[3]
CASES = tomllib.loads((ROOT / "experiments" / "finetune" / "cases.toml").read_text())


def test_a_preset_has_its_memory_under_a_plan() -> None:
    cases = {"clusters": ["case5-worldwide"], "tokens_per_step": 8192, "budget_s": 0.1}
    row = presets.row_of("llama-tiny", preset_config("llama-tiny"), cases)
    assert row["parameters, M"] == pytest.approx(4.49, abs=0.01)
    stages = int(str(row["case5-worldwide: plan"]).split(" x ")[0])
    each = str(row["case5-worldwide: GiB of each stage"]).split(", ")
    assert len(each) == stages
    assert all(float(memory) > 0 for memory in each)


def test_texts_of_packages_are_those_with_the_given_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unpack(command: Sequence[str], *, cwd: Path, **_: Any) -> None:
        if command[0] == "apt-get":
            (cwd / "manual_1_all.deb").touch()
            return
        for name, text in (("a.fr.txt.gz", "un"), ("a.en.txt.gz", "one")):
            path = cwd / "all" / "doc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()))

    monkeypatch.setattr(texts.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", unpack)
    cases = {"french": {"packages": ["manual"], "ends": [".fr.txt.gz"]}}
    files = texts.write_texts(cases, tmp_path)
    assert files["french"].read_text() == "un"
    assert set(CASES["texts"]) == {"english", "french"}
