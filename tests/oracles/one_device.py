"""The oracle of the runtime: the same model, data and loss on one device, without any pipeline."""

from functools import cache

import jax
import numpy as np

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.step.step_totals import StepTotals

NUM_LAYERS, SEQUENCE, VOCABULARY, MICROBATCH = 5, 8, 32, 2
SEED = 3
TOLERANCE = 1e-5
"""The largest relative error of a pipeline, in float32, against the oracle."""


@cache
def tiny_gpt(*, tied: bool, dropout: float = 0.0, experts: int = 0) -> Gpt:
    """Return a GPT that is small, but has every part; with experts, both auxiliary losses too."""
    return Gpt(
        GptConfig(
            num_layers=NUM_LAYERS,
            dim=16,
            num_heads=2,
            sequence=SEQUENCE,
            vocabulary=VOCABULARY,
            tied=tied,
            dropout=dropout,
            experts=experts,
            experts_per_token=min(2, max(experts, 1)),
            balance_loss=0.1,
            z_loss=0.1,
        )
    )


def draw_tokens(*, num_samples: int) -> np.ndarray:
    """Return samples of `SEQUENCE` + 1 tokens."""
    generator = np.random.default_rng(SEED)
    return generator.integers(0, VOCABULARY, (num_samples, SEQUENCE + 1)).astype(np.int32)


def loss_and_gradients(
    tokens: np.ndarray, *, tied: bool, experts: int = 0
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the mean loss over tokens and its gradients, under the names of a checkpoint.

    Microbatches are added in float64: the oracle is more exact than the pipelines.
    """
    step = _value_and_grad(tied=tied, experts=experts)
    params = _params(tied=tied, experts=experts)
    parts = [step(params, part) for part in tokens.reshape(-1, MICROBATCH, SEQUENCE + 1)]
    num_tokens = len(tokens) * SEQUENCE
    loss = sum(float(value) for value, _ in parts) / num_tokens
    flat = [flatten(gradients, first_layer=0) for _, gradients in parts]
    gradients = {
        name: np.asarray([each[name] for each in flat], np.float64).sum(axis=0) / num_tokens
        for name in flat[0]
    }
    return loss, gradients


def worst_error(
    found: dict[str, np.ndarray],
    totals: StepTotals,
    tokens: np.ndarray,
    *,
    tied: bool,
    experts: int = 0,
) -> float:
    """Return the largest relative error of the loss, the squared norm and each gradient tensor."""
    loss, gradients = loss_and_gradients(tokens, tied=tied, experts=experts)
    square_norm = sum(float((gradient**2).sum()) for gradient in gradients.values())
    errors = {
        "loss": abs(totals.loss / (len(tokens) * SEQUENCE) - loss) / loss,
        "square norm": abs(totals.square_norm - square_norm) / square_norm,
    }
    for name, gradient in found.items():
        difference = np.linalg.norm(gradient - gradients[name])
        errors[name] = float(difference / np.linalg.norm(gradients[name]))
    assert not any(map(np.isnan, errors.values())), errors
    return max(errors.values())


@cache
def _value_and_grad(*, tied: bool, experts: int):
    whole = _whole(tied=tied, experts=experts)
    return jax.jit(
        jax.value_and_grad(lambda params, t: whole.apply(params, t[:, :-1], t[:, 1:], None))
    )


@cache
def _params(*, tied: bool, experts: int):
    return jax.jit(lambda: _whole(tied=tied, experts=experts).init(seed=SEED))()


def _whole(*, tied: bool, experts: int) -> Stage:
    model = tiny_gpt(tied=tied, experts=experts)
    return Stage(model=model, index=0, num_stages=1, layers=range(NUM_LAYERS))
