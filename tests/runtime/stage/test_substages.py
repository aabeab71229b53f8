"""A deep stage, compiled as a chain of substages, computes what it computes as a whole."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.models.gpt import Gpt
from jaxpipe.runtime.stage import substages as module
from jaxpipe.runtime.stage.compile import CompiledStage, compile_stage, num_executables
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.substages import substages
from jaxpipe.schedule import Op, Remat
from tests.oracles.one_device import MICROBATCH, SEED, SEQUENCE, VOCABULARY, tiny_gpt

pytestmark = pytest.mark.slow

LAYERS = 7  # 3 with the embedding, 2, and 2 with the head
OPS = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
POSITION = np.array((4, 9), np.int32)


def deep_gpt(**fields: Any) -> Gpt:
    return Gpt(replace(tiny_gpt(tied=True).config, num_layers=LAYERS + 2, **fields))


def stage_functions(model: Any, *, index: int, num_stages: int, **options: Any) -> StageFunctions:
    layers = range(1, 1 + LAYERS)
    return StageFunctions(
        stage=Stage(model=model, index=index, num_stages=num_stages, layers=layers, **options),
        work=Work(microbatch=MICROBATCH, sequence=SEQUENCE, batch=2, num_steps=2, seed=SEED),
        optimizer=OptimizerConfig(),
    )


def results(stage: CompiledStage) -> dict[str, Any]:
    """Return what a forward, an evaluation, and a whole and a split backward return."""
    spec, draw = stage.spec, np.random.default_rng(0)
    tokens = draw.integers(0, VOCABULARY, (MICROBATCH, SEQUENCE)).astype(np.int32)
    hidden = jnp.asarray(draw.normal(size=spec.received.shape), spec.received.dtype)
    data = (tokens if spec.is_first else hidden, tokens if spec.is_last else None)
    compute = stage.cast(stage.init()[0])
    output, residuals = stage.forward(compute, *data, POSITION)
    cotangent = spec.loss_cotangent if spec.is_last else output
    of_input, gradients = stage.backward(compute, residuals, cotangent, stage.zeros())
    # A second microbatch adds to the gradients of the first.
    _, gradients = stage.backward(compute, residuals, cotangent, gradients)
    of_half, carried = stage.backward_input(compute, residuals, cotangent)
    return {
        "output": output,
        "evaluated": stage.evaluate(compute, *data),
        "of_input": of_input,
        "gradients": gradients,
        "of_half": of_half,
        "halves": stage.backward_weight(compute, carried, stage.zeros()),
    }


@pytest.mark.parametrize(
    ("index", "num_stages", "fields", "options"),
    [
        (0, 1, {"dropout": 0.3}, {}),
        (0, 2, {"dropout": 0.3}, {}),
        (1, 3, {"dropout": 0.3}, {}),
        (1, 2, {"compute_dtype": "bfloat16"}, {"remat": Remat.FULL}),
        (0, 1, {"tied": False}, {"remat": Remat.DOTS}),
    ],
)
def test_a_chain_computes_what_the_stage_computes(
    monkeypatch: pytest.MonkeyPatch,
    index: int,
    num_stages: int,
    fields: dict[str, Any],
    options: dict[str, Any],
):
    functions = stage_functions(deep_gpt(**fields), index=index, num_stages=num_stages, **options)
    check_chain(functions, monkeypatch, atol=2e-2 if "compute_dtype" in fields else 2e-6)


def test_a_chain_trains_adapters_alone(monkeypatch: pytest.MonkeyPatch):
    lora = LoraConfig(rank=1, targets=("mlp.*",))
    model = tuned(deep_gpt(), lora=lora, frozen=())
    check_chain(stage_functions(model, index=0, num_stages=1), monkeypatch, atol=2e-6)


def check_chain(functions: StageFunctions, monkeypatch: pytest.MonkeyPatch, *, atol: float) -> None:
    whole = results(compile_stage(functions, ops=OPS))
    monkeypatch.setattr(module, "LEAST_LAYERS", LAYERS)
    sizes = [len(part.stage.layers) for part in substages(functions.computes)]
    assert sizes == [3, 2, 2]
    counted: list[None] = []
    stage = compile_stage(functions, ops=OPS, before_each=lambda: counted.append(None))
    assert len(counted) == num_executables(functions, ops=OPS)
    assert stage.chain is not None
    chained = results(stage)
    assert jax.tree.structure(whole) == jax.tree.structure(chained)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), whole, chained
    )


def test_substages_between_the_ends_are_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LEAST_LAYERS", LAYERS)
    model = Gpt(replace(deep_gpt().config, num_layers=48))
    functions = stage_functions(model, index=0, num_stages=1)
    functions = replace(functions, stage=replace(functions.stage, layers=range(48)))
    first, *between, last = substages(functions.computes)
    assert len({*between}) == 1
    assert len(first.stage.layers) + 2 * len(between) + len(last.stage.layers) == 48


@pytest.mark.parametrize(
    "fields",
    [
        {"experts": 2, "experts_per_token": 1},
        {"bottlenecks": ((3, 4),)},
    ],
)
def test_layers_that_are_not_alike_are_compiled_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
):
    monkeypatch.setattr(module, "LEAST_LAYERS", LAYERS)
    model = deep_gpt(**fields, tied=False)
    assert substages(stage_functions(model, index=0, num_stages=1).computes) == ()


def test_packed_samples_are_compiled_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "LEAST_LAYERS", LAYERS)
    functions = stage_functions(deep_gpt(), index=0, num_stages=1)
    packed = replace(functions, work=replace(functions.work, packed=True))
    assert substages(functions.computes)
    assert not substages(packed.computes)
