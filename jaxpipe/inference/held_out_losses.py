"""The held-out loss of a checkpoint on several datasets, on one device."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import exp

import jax
import numpy as np
from jax import Array

from jaxpipe.config import restored_model, saved_config, tokenizer_of
from jaxpipe.errors import ConfigError
from jaxpipe.runtime.checkpoint import Checkpoint
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.data import (
    Dataset,
    Mixture,
    Samples,
    mixture_of,
    open_dataset,
    same_tokens,
)
from jaxpipe.runtime.data.order.samples import IGNORED
from jaxpipe.runtime.stage.calls import TargetArrays
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.placed import SampleParts
from jaxpipe.runtime.stage.stage import Stage, Targets
from jaxpipe.runtime.storage.object_folder import Folder

_BATCH = 8
"""Windows that are computed at once; a loss does not depend on it but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The mean loss over the targets of a dataset's held-out part that count [nats per token]."""

    folder: Folder
    num_targets: int
    loss: float

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return exp(self.loss)


def held_out_losses(
    checkpoint: Checkpoint, folders: Iterable[Folder], *, most_windows: int | None = None
) -> Iterator[HeldOut]:
    """Yield the loss on each dataset: on all whole windows held out, or on the first of them.

    Windows have the length of the run's samples; adapters are merged. Everything is checked before
    the first loss is computed.

    Raises:
        CheckpointError: the checkpoint is corrupt.
        ConfigError: the model predicts labels, or a dataset has another tokenizer.
        DataError: a dataset is missing, corrupt, or shorter than a window.
    """
    config = saved_config(checkpoint)
    if config.model.classes:
        raise ConfigError(
            f"only a model of text has a perplexity: `model.classes` of {checkpoint.folder} is "
            f"{config.model.classes}, not 0; name a run on text"
        )
    sequence = config.train.sequence or config.model.sequence
    held_out = {
        folder: mixture_of(
            [_opened(folder, checkpoint)], (1.0,), sequence=sequence, pack=config.data.pack
        )
        for folder in folders
    }
    windows = {folder: _num_windows(data, most=most_windows) for folder, data in held_out.items()}
    model, params = restored_model(checkpoint)
    layers = range(model.num_layers)
    stage = Stage(model=model, index=0, num_stages=1, layers=layers, loop=Loop.SCAN)
    evaluate = jax.jit(partial(_summed, stage))
    with jax.default_matmul_precision(config.run.matmul_precision.jax_name):
        for folder, data in held_out.items():
            loss, num_targets = 0.0, 0
            for batch in _batches(data, num_windows=windows[folder]):
                # On the host, in float64: in float32, a long sum would lose digits.
                loss += float(evaluate(params, batch.inputs, _targets(batch)))
                num_targets += int(np.count_nonzero(batch.targets != IGNORED))
            yield HeldOut(folder=folder, num_targets=num_targets, loss=loss / max(num_targets, 1))


def _targets(read: Samples) -> TargetArrays:
    if read.segments is None:
        return read.targets
    return SampleParts(segments=read.segments, targets=read.targets)


def _summed(stage: Stage, params: Parameters, inputs: Array, targets: Targets) -> Array:
    return stage.evaluate(params, inputs, targets)


def _batches(data: Mixture, *, num_windows: int) -> Iterator[Samples]:
    for begin in range(0, num_windows, _BATCH):
        rows = range(begin, min(begin + _BATCH, num_windows))
        yield data.eval_samples(index=0, batch=num_windows, rows=rows)


def _num_windows(data: Mixture, *, most: int | None) -> int:
    found = data.num_eval_batches(batch=1)
    return found if most is None else min(found, most)


def _opened(folder: Folder, checkpoint: Checkpoint) -> Dataset:
    """Open a dataset whose tokens are those of the model."""
    data = open_dataset(folder)
    if data.labels is not None or not same_tokens(data.tokenizer, tokenizer_of(checkpoint)):
        raise ConfigError(
            f"tokens mean what they meant in training: `--data` {folder} has labels or another "
            f"tokenizer than {checkpoint.folder}; prepare it with the tokenizer.json of the run"
        )
    return data
