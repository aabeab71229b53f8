"""Text is sampled with the precision with which the run multiplied."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpipe.inference import tokens
from jaxpipe.inference.sample_texts import sample_text
from jaxpipe.runtime.checkpoint import latest
from tests.runtime.training import run_tree, tiny_tree


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "expected"), [("float32", "float32"), ("tf32", "default")])
def test_a_sample_has_the_precision_of_its_run(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, expected: str
) -> None:
    one = {"train": {"steps": 1}, "plan": {"stages": 1, "replicas": 1}}
    run_tree(tiny_tree(tmp_path, dataset, **one, run={"matmul_precision": chosen}))
    used: list[object] = []
    drawn = tokens.generated

    def generated(*arguments: Any, **options: Any) -> Iterator[tuple[int, ...]]:
        for step in drawn(*arguments, **options):
            used.append(jax.config.jax_default_matmul_precision)  # pyright: ignore[reportAttributeAccessIssue]
            yield step

    monkeypatch.setattr(tokens, "generated", generated)
    assert sample_text(latest(tmp_path), "a", tokens=2, temperature=0.0).startswith("a")
    assert used == [expected] * 2
