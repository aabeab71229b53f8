"""`jaxpipe autoshard` plans and compiles a sharded step, and explains wrong input on one line."""

import json

import pytest

from jaxpipe.cli.main import main


@pytest.mark.slow
def test_a_small_step(capsys: pytest.CaptureFixture[str]) -> None:
    words = "autoshard --model tiny --layers 1 --mesh 2 --batch 2 --dtype float32 --op 2 --json"
    assert main(words.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dp"], told["op"], told["truth"]) == (1, 2, "simulated")
    assert told["counts"]["num_comm"] >= told["counts"]["allreduce"] > 0
    assert told["arguments_bytes"] > 0
    assert told["predicted_s"] > 0


@pytest.mark.slow
def test_a_small_search(capsys: pytest.CaptureFixture[str]) -> None:
    words = "autoshard --model tiny --layers 1 --mesh 2 --batch 2 --dtype float32"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert "strategy      found on" in out
    assert "(simulated for v100)" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--dp 3", "`--dp` and `--op` must divide `--mesh` 4, 3 does not"),
        ("--dp 2 --op 4", "`--dp` times `--op` must be `--mesh`: 2 x 4 is not 4"),
        ("--dp 4 --batch 6", "`--batch` must be a multiple of `--dp`: 6 is not one of 4"),
        ("--model abacus", "`--model`: `preset` must be a known name, not 'abacus'"),
    ],
)
def test_wrong_input(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["autoshard", *words.split()]) == 2
    assert told in capsys.readouterr().err
