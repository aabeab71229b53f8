"""How far the loss and the gradients of a rank are from those of one device."""

import numpy as np

from jaxpipe.runtime.step.step_totals import StepTotals
from tests.oracles.one_device import SEQUENCE, loss_and_gradients

TOLERANCE = 1e-5


def worst_error(
    found: dict[str, np.ndarray], totals: StepTotals, tokens: np.ndarray, *, tied: bool
) -> float:
    """Return the largest relative error of the loss, the squared norm and each gradient tensor."""
    loss, gradients = loss_and_gradients(tokens, tied=tied)
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
