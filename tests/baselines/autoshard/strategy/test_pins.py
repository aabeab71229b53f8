from pathlib import Path

import pytest

from jaxpipe.baselines.autoshard.strategy import Pins, parse_sharding, pins_from, read_pins
from jaxpipe.errors import PlanError

ROWS, COLUMNS = parse_sharding("S0R"), parse_sharding("RS1")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pins.toml", '[arguments]\n"params.*" = "RS1"\n[operators]\n3 = "S0R"\n'),
        ("pins.json", '{"arguments": {"params.*": "RS1"}, "operators": {"3": "S0R"}}'),
    ],
)
def test_pins_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    pins = read_pins(tmp_path / name)
    assert pins == Pins(arguments={"params.*": COLUMNS}, operators={3: ROWS})
    assert pins.argument("params.up") == COLUMNS
    assert pins.argument("batch") is None


def test_later_pins_count() -> None:
    pins = Pins(arguments={"*": ROWS}) | Pins(arguments={"up": COLUMNS})
    assert pins.argument("up") == COLUMNS
    assert pins.argument("down") == ROWS


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"argument": {}}, "`argument` is unknown among pins"),
        ({"arguments": {"up": 3}}, r"`arguments\.up` must be a text such as 'S0R', is 3"),
        ({"arguments": {"up": "X"}}, r"`arguments\.up`: `sharding` \('X'\) must be"),
        ({"operators": {"dot": "RR"}}, "indices, not 'dot'; look one up"),
        ({"operators": {"9" * 5000: "RR"}}, "indices, not '9{40}'; look one up"),
        ({"arguments": 3}, r"`arguments` must be a table of shardings, is 3; write \[arguments\]"),
        ({"operators": ["RR"]}, r"`operators` must be a table of shardings, is \['RR'\]"),
        ([], r"`arguments` or `operators` must be among the pins, not \[\]"),
        ("S0R", "`arguments` or `operators` must be among the pins, not 'S0R'"),
    ],
)
def test_what_is_wrong_in_pins_is_named(tree: object, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        pins_from(tree)


@pytest.mark.parametrize("content", [b"[arguments", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("name", ["pins.toml", "pins.json"])
def test_a_file_of_something_else_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PlanError, match=rf"{name} is neither TOML nor JSON"):
        read_pins(tmp_path / name)
