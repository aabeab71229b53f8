"""What is no TOML, or more than anybody reads, is one kind of error, and soon found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.topo.toml_text import parse_toml


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("x = " + "{a=" * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ("a" + ".a" * 50_000 + " = 1", "has more than 100 parts"),
        ("[" + "a . " * 101 + "a]", "has more than 100 parts"),
        (f"x = [{2**63}]", "integer 9.2234e.18 must fit into 64 bits"),
        (f"x = -{10**400}", "does not fit into 64 bits"),
        ("x = " + "9" * 5000, "4300 digits"),
        ("x = ", "Invalid value"),
        ("\0", "Invalid statement"),
    ],
    ids=lambda each: f"{each:.20}",
)
def test_wrong_texts(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_toml(text)


@pytest.mark.parametrize(
    "text", ["", "a." * 99 + "a = 1", "x = " + ", ".join(["[0.5"] + ["0.5"] * 500) + "]"]
)
def test_right_texts(text: str) -> None:
    parse_toml(text)


@given(text=st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_toml(text)
    except ValueError:
        return
