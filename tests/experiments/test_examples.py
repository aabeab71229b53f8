"""The examples in the docstrings of experiments run."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    if "notebooks" not in path.parts and ">>>" in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
