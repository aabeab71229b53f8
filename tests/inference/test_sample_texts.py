"""Text is sampled as the run was trained: with its precision, and samples of its length."""

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
def test_a_sample_has_the_precision_and_the_length_of_its_run(
    tmp_path: Path,
    dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chosen: str,
    expected: str,
) -> None:
    one = {"train": {"steps": 1, "sequence": 8}, "plan": {"stages": 1, "replicas": 1}}
    run_tree(tiny_tree(tmp_path, dataset, **one, run={"matmul_precision": chosen}))
    used: list[object] = []
    drawn = tokens.generated

    def generated(*arguments: Any, **options: Any) -> Iterator[tuple[int, ...]]:
        assert options["window"] == 8
        for step in drawn(*arguments, **options):
            used.append(jax.config.jax_default_matmul_precision)  # pyright: ignore[reportAttributeAccessIssue]
            yield step

    monkeypatch.setattr(tokens, "generated", generated)
    # Longer than what is trained, and no warning: the model sees the last tokens alone.
    assert sample_text(latest(tmp_path), "a", tokens=12, temperature=0.0).startswith("a")
    assert used == [expected] * 12
    assert "has not trained" not in caplog.text
