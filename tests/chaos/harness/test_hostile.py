"""Hostile inputs: the same for a seed, and one line or the work done, called in this process."""

from pathlib import Path
from random import Random

import pytest

from jaxpipe.chaos.fuzz import Ending, judge
from jaxpipe.chaos.harness.hostile import BUILDERS, Builder, packages
from jaxpipe.cli.main import main

IN_PROCESS = [build for build in BUILDERS if build is not packages]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_seed_gives_one_input(build: Builder, tmp_path: Path):
    made = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        made.append(build(tmp_path / name, Random(0 if name != "c" else 1)))
    assert made[0].what == made[1].what
    assert len(made[0].arguments) == len(made[1].arguments)


@pytest.mark.parametrize("build", IN_PROCESS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("seed", range(8))
def test_no_input_passes_for_another(
    build: Builder,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    hostile = build(tmp_path, Random(seed))
    before = [path.read_bytes() for path in hostile.files if path.exists()]
    code = main(list(hostile.arguments))
    ending = Ending(code=code, cpu_s=0.0, seconds=0.0, err=capsys.readouterr().err)
    assert judge(ending, surely_wrong=False) == "", hostile.what
    assert [path.read_bytes() for path in hostile.files if path.exists()] == before
