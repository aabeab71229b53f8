"""A stage whose products a BLAS computes has the loss and the gradients of XLA's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.runtime.blas.chosen_products import Products, by_xla
from jaxpipe.runtime.blas.custom_calls import Blas
from jaxpipe.runtime.stage import compile as compile_module
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Op
from tests.oracles.one_device import MICROBATCH, SEED, SEQUENCE, VOCABULARY, tiny_gpt
from tests.runtime.blas.conftest import attention_by, lowered_by

BY_BLAS = Products(name="plain", library=Path("plain_gemm.so"))


def compiled(
    monkeypatch: pytest.MonkeyPatch, products: Products, *, dtype: str = "float32"
) -> CompiledStage:
    """Compile a whole model as one stage, with jax's rules as they are now."""
    monkeypatch.setattr(compile_module, "use_products", lambda _: products)
    model = Gpt(replace(tiny_gpt(tied=True).config, compute_dtype=dtype))
    stage = Stage(model=model, index=0, num_stages=1, layers=range(2))
    work = Work(microbatch=MICROBATCH, sequence=SEQUENCE, batch=2, num_steps=2, seed=SEED)
    functions = StageFunctions(stage=stage, work=work, optimizer=OptimizerConfig())
    return compile_stage(functions, ops=tuple(Op))


def results(calls: CompiledStage) -> Any:
    """Return the loss of a microbatch, and its gradients by a whole backward and by halves."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (MICROBATCH, SEQUENCE), np.int32)
    position, cotangent = np.zeros(2, np.int32), calls.spec.loss_cotangent
    compute = calls.cast(calls.init()[0])
    loss, residuals = calls.forward(compute, tokens, tokens, position)
    _, whole = calls.backward(compute, residuals, cotangent, calls.zeros())
    _, carried = calls.backward_input(compute, residuals, cotangent)
    halves = calls.backward_weight(compute, carried, calls.zeros())
    return jax.tree.map(np.asarray, (loss, whole, halves))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 1.5e-2)])
def test_loss_and_gradients_are_those_of_xla(
    monkeypatch: pytest.MonkeyPatch, plain_blas: Blas, dtype: str, tolerance: float
):
    expected = results(compiled(monkeypatch, by_xla("of the test"), dtype=dtype))
    with lowered_by(plain_blas), attention_by(plain_blas) as attention:
        monkeypatch.setattr(compile_module, "use_attention", lambda _: attention)
        calls = compiled(monkeypatch, BY_BLAS, dtype=dtype)
    text = calls.executables["backward"].as_text() or ""
    assert "jaxpipe_gemm" in text
    assert attention.backward in text
    for one, other in zip(*map(jax.tree.leaves, (results(calls), expected)), strict=True):
        margin = tolerance * float(abs(other).max())
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=margin)


@pytest.mark.slow
def test_products_of_a_blas_read_no_copies(monkeypatch: pytest.MonkeyPatch):
    copied: list[bool] = []
    fast = compile_module.fast_row_products

    def fast_row_products(function: Any, **options: Any) -> Any:
        copied.append(options["copied"])
        return fast(function, **options)

    monkeypatch.setattr(compile_module, "fast_row_products", fast_row_products)
    for products in (by_xla("of the test"), BY_BLAS):
        compiled(monkeypatch, products)
    assert copied == [True, True, False, False]
