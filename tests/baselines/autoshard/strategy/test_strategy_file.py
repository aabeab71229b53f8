from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.baselines.autoshard.strategy import (
    AxisLink,
    MeshShape,
    Strategy,
    ZeroLevel,
    parse_choice,
    parse_sharding,
    read_strategy,
    strategy_text,
    write_strategy,
)
from jaxpipe.errors import PlanError

STRATEGY = Strategy(
    name="by hand",
    mesh=MeshShape(dp=2, op=4, op_link=AxisLink(latency_s=1e-5, bandwidth_bytes_per_s=1e11)),
    arguments={"params.up": parse_sharding("RS1"), "step": parse_sharding("-")},
    results={"params.up": parse_sharding("RS1")},
    operators={3: parse_choice("S0R,RS1->S0S1"), 7: parse_choice("S0S1,S1R->S01R +1>0")},
    zero=ZeroLevel.OPTIMIZER,
    seconds=0.125,
)


def test_a_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(STRATEGY, path)
    assert read_strategy(path) == STRATEGY


@pytest.mark.parametrize(
    ("there", "instead", "words"),
    [
        ('"RS1"', '"RX"', r"`arguments\.params\.up`: `sharding` \('RX'\) must be .*write"),
        (
            "->",
            "=>",
            r"`operators\.3`: cannot parse the choice of an operator .* operands->results",
        ),
        (" +1>0", " 1>0", r"`operators\.7`: cannot parse partial sum .* example '\+1>0'"),
        (" +1>0", f" +1>{'9' * 5000}", r"`operators\.7`: cannot parse partial sum"),
        ('"format": 1', '"format": 2', r"`format` must be 1, is 2"),
        ('"zero": "optimizer"', '"zero": "all"', r"Invalid enum value 'all' - at `\$\.zero`"),
        ('"dp": 2', '"dp": 0', r"`dp` \(0\) must be at least 1"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    tmp_path: Path, there: str, instead: str, words: str
) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(strategy_text(STRATEGY).replace(there, instead, 1))
    with pytest.raises(PlanError, match=words):
        read_strategy(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read the strategy"):
        read_strategy(tmp_path / "none.json")


def test_a_name_in_another_alphabet_reads_back(tmp_path: Path) -> None:
    path, strategy = tmp_path / "strategy.json", replace(STRATEGY, name="東京")
    write_strategy(strategy, path)
    assert read_strategy(path) == strategy


@pytest.mark.parametrize(
    "content",
    [
        strategy_text(STRATEGY).replace("by hand", "é").encode("latin-1"),
        strategy_text(STRATEGY).encode("utf-16"),
        b'{"a": ' + b"[" * 100_000,
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "strategy.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"strategy\.json is not a strategy"):
        read_strategy(path)
