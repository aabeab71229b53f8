"""The parts of the experiment that train nothing: texts, and the table of presets."""

import gzip
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.finetune import presets, texts
from experiments.finetune.peak_memory import run_watched
from experiments.finetune.talk import conversations
from jaxpipe.models import preset_config

ROOT = Path(__file__).parents[3]
CASES = tomllib.loads((ROOT / "experiments" / "finetune" / "cases.toml").read_text())


def test_a_preset_has_the_fewest_stages_whose_memory_the_devices_have() -> None:
    cases = {"clusters": ["fluidstack-3region"], "tokens_per_step": 2**17}
    small, large = (
        presets.row_of(name, preset_config(name), cases) for name in ("llama-tiny", "gpt-xl-24")
    )
    assert small["parameters, M"] == pytest.approx(4.49, abs=0.01)
    plan, memory = "fluidstack-3region: stages x replicas", "fluidstack-3region: GiB a stage"
    assert small[plan] == "1 x 48"  # devices of 48 GB
    stages = int(str(large[plan]).split(" x ")[0])
    assert 48 % stages == 0
    least, *_, most = [float(each) for each in str(large[memory]).split(" to ")] * 2
    assert 0 < least <= most < 48e9 / 2**30
    too_large = presets.row_of(
        "alpa-15b", preset_config("alpa-15b"), {**cases, "clusters": ["laptop"]}
    )
    assert too_large["laptop: stages x replicas"] == "none fits"


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


def test_conversations_are_questions_with_answers() -> None:
    talk = conversations(600)
    assert len(talk) > 70
    for record in talk:
        question, answer = record["messages"]
        assert (question["role"], answer["role"]) == ("user", "assistant")
        assert 0 < len(answer["content"]) <= 600


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_memory_of_processes_is_the_sum_of_their_largest() -> None:
    program = "import time; x = bytes(range(256)) * 200_000; del x; time.sleep(1)"
    with run_watched() as watched:
        started = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(2)]
        for process in started:
            assert process.wait(60) == 0
    assert 2 * 51_200_000 < watched.peak_bytes < 2 * 120_000_000
