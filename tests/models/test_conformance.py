"""One suite for all models of the catalogue, and for the model of the documentation.

Whatever satisfies the Protocol passes it: add a model to `MODELS`.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from docs.examples.own_model import Decays
from jaxpipe.finetune import LoraConfig
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.llama import Llama
from jaxpipe.runtime.checkpoint import flatten, names, restore
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.data.dataset.dataset import InputShape
from jaxpipe.runtime.data.order.samples import IGNORED
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.model import Model, hidden_shape
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles.llamas import GEMMA, GEMMA3_RAGGED, LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3

pytestmark = pytest.mark.slow

NUM_LAYERS, SEQUENCE, SAMPLES, SEED = 4, 8, 2, 5
GPT = GptConfig(num_layers=NUM_LAYERS, dim=16, num_heads=2, sequence=SEQUENCE, vocabulary=19)
MODELS: dict[str, Model] = {
    "gpt": Gpt(GPT),
    "experts": Gpt(replace(GPT, tied=False, experts=2, balance_loss=0.1)),
    "llama": Llama(replace(LLAMA, num_layers=NUM_LAYERS)),
    "qwen3": Llama(replace(QWEN3, num_layers=NUM_LAYERS, tied=True)),
    "gemma2": Llama(replace(GEMMA, num_layers=NUM_LAYERS)),
    # The inner stage has a layer of either kind.
    "gemma3": Llama(replace(GEMMA3_RAGGED, num_layers=NUM_LAYERS, full_layers=(1,))),
    "mistral": Llama(replace(MISTRAL, num_layers=NUM_LAYERS)),
    "qwen2": Llama(replace(QWEN2, num_layers=NUM_LAYERS)),
    "mixtral": Llama(replace(MIXTRAL, num_layers=NUM_LAYERS)),
    "text encoder": Gpt(replace(GPT, causal=False, classes=3, tied=False)),
    "picture encoder": Gpt(
        replace(
            GPT, sequence=5, causal=False, classes=3, tied=False, patch=2, channels=1, experts=2
        )
    ),
    "own": Decays(num_layers=NUM_LAYERS, vocabulary=19, dim=16),
}
CUT = (1, 2, 1)
"""A first stage, an inner one that loops over its layers, and a last one."""
TOLERANCE = 1e-5
"""The largest relative error of a gradient in float32, whose sums have another order."""

Trees = tuple[dict[str, Any], ...]
every_model = pytest.mark.parametrize("name", MODELS)


def work_of(model: Model) -> Work:
    """Return the sizes of a step, of labelled samples where the model has classes."""
    labelled = None
    if isinstance(model, Gpt) and model.config.classes:
        labelled = InputShape.of_model(picture=model.config.picture, sequence=SEQUENCE)
    return Work(
        microbatch=SAMPLES,
        sequence=SEQUENCE,
        batch=SAMPLES,
        num_steps=1,
        seed=SEED,
        labelled=labelled,
    )


def samples_of(model: Model) -> tuple[jax.Array, jax.Array]:
    """Return inputs and targets: windows of tokens, or samples with labels."""
    draw, work = np.random.default_rng(0), work_of(model)
    if work.labelled is None:
        tokens = draw.integers(0, model.vocabulary, (SAMPLES, SEQUENCE + 1))
        return jnp.asarray(tokens[:, :-1], jnp.int32), jnp.asarray(tokens[:, 1:], jnp.int32)
    # Pixels in bytes, tokens of the vocabulary.
    inputs = draw.integers(0, model.vocabulary, work.inputs.shape)
    labels = draw.integers(0, 3, (SAMPLES,))
    return jnp.asarray(inputs, work.inputs.dtype), jnp.asarray(labels, jnp.int32)


def stages_of(model: Model, cut: tuple[int, ...]) -> Iterable[StageFunctions]:
    """Return the functions of each stage, as a rank would compile them."""
    first = 0
    for index, layers in enumerate(cut):
        yield StageFunctions(
            stage=Stage(
                model=model,
                index=index,
                num_stages=len(cut),
                layers=range(first, first + layers),
                loop=Loop.SCAN,
            ),
            work=work_of(model),
            optimizer=OptimizerConfig(),
        )
        first += layers


def fresh(stage: Stage) -> dict[str, Any]:
    """Return the parameters of a stage as a run begins with them."""
    return stage.init(seed=SEED)


def of_pipeline(
    model: Model,
    cut: tuple[int, ...],
    inputs: jax.Array,
    targets: jax.Array,
    init: Callable[[Stage], dict[str, Any]] = fresh,
) -> tuple[jax.Array, Trees]:
    """Return the loss and the gradients of the stages, computed as their ranks would."""
    stages, position = tuple(stages_of(model, cut)), jnp.zeros(2, jnp.int32)
    x, loss = inputs, jnp.float32(0)
    kept: list[tuple[Any, Any, bool]] = []
    for each in stages:
        compute = each.cast(init(each.stage))
        output, residuals = each.forward(compute, x, targets, position)
        kept.append((compute, residuals, isinstance(output, tuple)))
        # A layer that adds to the loss returns a pair; the last stage has added it.
        if isinstance(output, tuple):
            x, added = output
            loss = loss + added
        elif each.stage.is_last:
            loss = loss + output
        else:
            x = output
    gradients: list[dict[str, Any]] = []
    cotangent = of_loss = stages[-1].loss_cotangent()
    for each, (compute, residuals, is_pair) in zip(stages[::-1], kept[::-1], strict=True):
        of_output = (cotangent, of_loss) if is_pair else cotangent
        of_input, found = each.backward(compute, residuals, of_output, each.zeros())
        gradients.append(found)
        if of_input is not None:  # the first stage returns none
            cotangent = of_input
    return loss * of_loss, tuple(gradients[::-1])


def of_one_device(
    model: Model, params: dict[str, Any], inputs: jax.Array, targets: jax.Array
) -> tuple[jax.Array, dict[str, Any]]:
    """Return the mean loss and its gradients by JAX alone, without any stage function."""

    def loss(params: dict[str, Any]) -> jax.Array:
        total = one_device(model).apply(params, inputs, targets, None)
        assert not isinstance(total, tuple)
        return total / work_of(model).num_targets

    return jax.value_and_grad(loss)(params)


def one_device(model: Model) -> Stage:
    """Return the stage of all layers."""
    return Stage(model=model, index=0, num_stages=1, layers=range(NUM_LAYERS), loop=Loop.SCAN)


@cache
def initial(name: str) -> dict[str, Any]:
    """Return the parameters of all layers as a run begins with them."""
    return fresh(one_device(MODELS[name]))


@cache
def results(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return what one device computes, and the cut, of the same parameters: compiled at once.

    The parameters are arguments: in the program, their generator would be compiled for each stage.
    """
    model, saved = MODELS[name], flatten(initial(name), first_layer=0)
    parts = {
        stage.layers.start: restored(stage, saved)
        for stage in (functions.stage for functions in stages_of(model, CUT))
    }

    @jax.jit
    def compute(
        params: dict[str, Any],
        parts: dict[int, dict[str, Any]],
        inputs: jax.Array,
        targets: jax.Array,
    ) -> Any:
        cut = of_pipeline(model, CUT, inputs, targets, lambda stage: parts[stage.layers.start])
        return of_one_device(model, params, inputs, targets), cut

    return compute(initial(name), parts, *samples_of(model))


def restored(stage: Stage, saved: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the parameters of a stage from a checkpoint of all layers."""
    template = jax.eval_shape(partial(fresh, stage))
    return restore(template, saved, first_layer=stage.layers.start)


def by_name(trees: Trees, cut: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return gradients under the names of checkpoints; those of a tied table are summed."""
    found: dict[str, np.ndarray] = {}
    for index, tree in enumerate(trees):
        for name, tensor in flatten(tree, first_layer=sum(cut[:index])).items():
            found[name] = found[name] + tensor if name in found else tensor
    return found


@every_model
def test_the_shape_of_the_input_of_a_layer_is_that_of_what_is_embedded(name: str):
    model = MODELS[name]
    inputs, _ = samples_of(model)
    params = model.init(jax.random.key(0), layers=range(0), embed=True, head=False)
    embedded = model.embed(params, inputs, None)
    for of in (model, tuned(model, lora=LoraConfig(), frozen=("embed.*",))):
        shape = hidden_shape(of, jax.ShapeDtypeStruct(inputs.shape, inputs.dtype))
        assert (shape.shape, shape.dtype) == (embedded.shape, embedded.dtype)


@every_model
def test_a_cut_has_the_loss_and_gradients_of_one_device(name: str) -> None:
    (loss, gradients), (found_loss, found) = results(name)
    np.testing.assert_allclose(found_loss, loss, rtol=TOLERANCE)
    expected = flatten(gradients, first_layer=0)
    actual = by_name(found, CUT)
    assert actual.keys() == expected.keys()
    for tensor, value in expected.items():
        error = np.linalg.norm(actual[tensor] - value)
        assert error <= TOLERANCE * np.linalg.norm(value), tensor


@every_model
def test_every_parameter_matters(name: str) -> None:
    (_, gradients), _ = results(name)
    still = [
        tensor
        for tensor, value in flatten(gradients, first_layer=0).items()
        if not np.any(value) and not tensor.endswith(("key.bias",))
    ]
    assert not still


@every_model
def test_ignored_targets_do_not_count(name: str) -> None:
    model = MODELS[name]
    inputs, targets = samples_of(model)

    @jax.jit
    def loss(params: dict[str, Any], targets: jax.Array) -> jax.Array:
        return one_device(model).evaluate(params, inputs, targets)

    some = jnp.arange(targets.size).reshape(targets.shape) % 2 == 0
    params = initial(name)
    parts = [loss(params, jnp.where(counts, targets, IGNORED)) for counts in (some, ~some)]
    np.testing.assert_allclose(sum(parts), loss(params, targets), rtol=TOLERANCE)
    assert loss(params, jnp.full_like(targets, IGNORED)) == 0


@every_model
def test_a_checkpoint_of_any_cut_is_read_by_any_other(name: str) -> None:
    saved = flatten(initial(name), first_layer=0)
    for functions in stages_of(MODELS[name], (1, 3)):
        stage = functions.stage
        params, first = fresh(stage), stage.layers.start
        assert set(names(params, first_layer=first)) <= saved.keys()
        jax.tree.map(np.testing.assert_array_equal, restored(stage, saved), params)


@every_model
def test_split_names_dims_of_parameters(name: str) -> None:
    model = MODELS[name]
    init = partial(model.init, layers=range(1), embed=True, head=True)
    leaves = jax.tree.leaves_with_path(jax.eval_shape(init, jax.random.key(0)))
    shapes = {".".join(key.key for key in path): leaf.shape for path, leaf in leaves}
    for parameter, dim in model.split.items():
        if parameter in shapes:  # biases and an untied kernel are optional
            # The dim of the layer, which is first, is never split.
            assert -len(shapes[parameter]) + parameter.startswith("blocks.") <= dim < 0, parameter
    assert any(parameter in shapes for parameter in model.split)


@every_model
def test_it_satisfies_the_protocol(name: str) -> None:
    model = MODELS[name]
    assert isinstance(model, Model)
    assert hash(model) == hash(model)  # jit takes it as a static argument
