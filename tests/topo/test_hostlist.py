"""SLURM's lists of names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.topo.slurm import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("login", ("login",)),
        ("a,b", ("a", "b")),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-11]x", ("n08x", "n09x", "n10x", "n11x")),
        ("n[1,3-4],m[0-1]", ("n1", "n3", "n4", "m0", "m1")),
        ("r[0-1]n[2-3]", ("r0n2", "r0n3", "r1n2", "r1n3")),
    ],
)
def test_lists_expand(text: str, names: tuple[str, ...]):
    assert expand(text) == names


@given(first=st.integers(0, 200), count=st.integers(1, 50), width=st.integers(1, 5))
def test_a_range_has_all_its_numbers(first: int, count: int, width: int):
    numbers = range(first, first + count)
    text = f"n[{str(numbers[0]).zfill(width)}-{numbers[-1]}]"
    assert expand(text) == tuple(f"n{str(n).zfill(width)}" for n in numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n[a-b]", "brackets must have ranges such as"),
        ("n[]", "must have ranges"),
        ("n[3-1]", "range 3-1 of nodes must run forwards"),
        (f"n[1-{'9' * 5000}]", "brackets must have ranges such as"),
        ("n[1-999999999]", "it can have at most"),
        ("n[1-999][1-999]", "it can have at most"),
    ],
)
def test_wrong_lists_are_refused(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        expand(text)
