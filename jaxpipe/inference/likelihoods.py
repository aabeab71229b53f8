"""The log-likelihood of tokens that follow others, by a model on one device.

::

    context, continuation    c c c c │ t t t
    inputs                   c c c c   t t
    logits that count              └───┴─┴── each is compared with the token after it
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxpipe.errors import ConfigError
from jaxpipe.models.decoder import padded_limit
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.model import Model, Parameters
from jaxpipe.runtime.stage.stage import Stage

_MOST_ROWS = 8
_MOST_LOGITS = 2**28
"""Logits that are in memory at once: 1 GiB in float32."""

Scores = tuple[Float[Array, "batch seq"], Bool[Array, "batch seq"]]


class Continued(NamedTuple):
    """Tokens that follow others; there is at least one of both."""

    context: Sequence[int]
    continuation: Sequence[int]


class Likelihood(NamedTuple):
    """The log-probability of a continuation [nats], and whether greedy tokens are the same."""

    log_probability: float
    is_greedy: bool


def likelihoods(
    model: Model, params: Parameters, texts: Sequence[Continued]
) -> Iterator[tuple[int, Likelihood]]:
    """Yield the likelihood of each continuation after its context, by number, the longest first.

    Of a text that is longer than the model's sequence, the first tokens are left out. Texts of
    about the same length are computed together and share a program.

    Raises:
        ConfigError: a continuation is longer than the sequence of the model.
    """
    longest = max((len(text.continuation) for text in texts), default=0)
    if longest > model.sequence:
        raise ConfigError(
            f"`model.sequence` ({model.sequence}) must be at least the tokens of a continuation, "
            f"and one has {longest}; leave out the task, or take a model that reads more"
        )
    stage = Stage(
        model=model, index=0, num_stages=1, layers=range(model.num_layers), loop=Loop.SCAN
    )
    tokens = [[*text.context, *text.continuation][-(model.sequence + 1) :] for text in texts]
    order = sorted(range(len(texts)), key=lambda number: -len(tokens[number]))
    while order:
        limits = [
            padded_limit(model, len(tokens[number]) - 1, most=model.sequence)
            for number in order[:_MOST_ROWS]
        ]
        width = width_of(len(tokens[order[0]]) - 1, most=limits[0])
        num_rows = max(1, min(_MOST_ROWS, _MOST_LOGITS // (width * model.vocabulary)))
        count = min(num_rows, limits.count(limits[0]))
        numbers, order = order[:count], order[count:]
        rows = np.zeros((num_rows, width + 1), np.int32)
        for row, number in zip(rows, numbers, strict=False):
            row[: len(tokens[number])] = tokens[number]
        # Padding comes last: attention is causal, so it does not reach the logits that count.
        logs, greedy = map(np.asarray, _scored(stage, params, rows))
        for row, number in enumerate(numbers):
            end = len(tokens[number]) - 1
            counted = slice(end - len(texts[number].continuation), end)
            log = float(np.sum(logs[row, counted], dtype=np.float64))
            yield number, Likelihood(log, bool(np.all(greedy[row, counted])))


def width_of(length: int, *, most: int) -> int:
    """Return the width at which texts of a length are computed: few widths are few programs.

    >>> [width_of(length, most=100) for length in (1, 16, 17, 90)]
    [16, 16, 32, 100]
    """
    return min(most, max(16, 1 << (length - 1).bit_length()))


@partial(jax.jit, static_argnums=0)
def _scored(stage: Stage, params: Parameters, rows: Int[Array, "batch seq_and_one"]) -> Scores:
    inputs, targets = rows[:, :-1], rows[:, 1:]
    logits = stage.logits(params, inputs).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    logs = picked - jax.nn.logsumexp(logits, axis=-1)
    return logs, jnp.argmax(logits, axis=-1) == targets
