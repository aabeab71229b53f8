"""Random samples in the form of a run's data: packed, masked, labelled or mixed as those are.

The tokens of the run do not fit the smaller vocabulary, and may not be prepared yet.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from jaxpipe.config import Config
from jaxpipe.errors import DataError
from jaxpipe.runtime.data import Dataset, InputShape, Mixture, dataset_folder, open_dataset
from jaxpipe.runtime.data.order.packing import packed_rows
from jaxpipe.runtime.data.order.samples import LabelledRows, Split, Windows
from jaxpipe.runtime.data.order.source_order import shares_of

_COUNTED = 0.7
"""The part of the tokens that count, where some do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataForm:
    """What decides how samples are read.

    `masked` says of each source whether it has tokens that do not count. `labelled` is whether a
    sample has one label. `is_known` is False where a dataset is not prepared yet.
    """

    masked: tuple[bool, ...]
    labelled: bool
    packed: bool
    weights: tuple[float, ...]
    is_known: bool = True


def form_of(config: Config) -> DataForm:
    """Return the form of the data of a configuration; datasets that cannot be read are plain."""
    folders = map(dataset_folder, config.data.folders)
    datasets: list[Dataset] = []
    with suppress(DataError):
        datasets = [open_dataset(folder, verify=False) for folder in folders]
    masked = tuple(dataset.counted is not None for dataset in datasets)
    return DataForm(
        masked=masked or (False,) * len(config.data.folders),
        labelled=config.model.classes > 0,
        packed=config.data.pack,
        weights=config.data.weights,
        is_known=bool(datasets),
    )


def stand_in(form: DataForm, small: Config) -> Mixture:
    """Return samples of this form for a smaller configuration, enough for all of its steps."""
    random = np.random.default_rng(small.run.seed)
    # Twice what is read: packed rows are not full, and a mixture takes more of some sources.
    num_samples = 2 * small.train.batch * (small.train.steps + (small.train.eval_batches or 0)) + 64
    splits = [
        tuple(_split(form, small, is_masked, num_samples, random) for _ in range(2))
        for is_masked in form.masked
    ]
    sequence = small.train.sequence or small.model.sequence
    shape = InputShape.of_model(picture=small.model.picture, sequence=sequence)
    return Mixture(
        train=tuple(train for train, _ in splits),
        eval=tuple(evaluated for _, evaluated in splits),
        shares=shares_of(form.weights),
        labelled_input=shape if form.labelled else None,
        masked=form.packed or any(form.masked),
        packed=form.packed,
    )


def _split(
    form: DataForm, small: Config, is_masked: bool, num_samples: int, random: np.random.Generator
) -> Split:
    sequence = small.train.sequence or small.model.sequence
    if form.labelled:
        shape = InputShape.of_model(picture=small.model.picture, sequence=sequence)
        inputs = random.integers(0, small.model.vocabulary, (num_samples, *shape.shape))
        labels = random.integers(0, small.model.classes, num_samples)
        return LabelledRows(
            inputs=inputs.astype(np.uint8), labels=labels.astype(np.uint8), dtype=shape.dtype
        )
    num_tokens = num_samples * sequence + 1
    tokens = random.integers(0, small.model.vocabulary, num_tokens).astype(np.uint16)
    counted = (random.random(num_tokens) < _COUNTED).astype(np.uint8) if is_masked else None
    if not form.packed:
        return Windows(tokens=tokens, sequence=sequence, counted=counted)
    ends = _ends(num_tokens, sequence, random)
    return packed_rows(tokens, np.array(ends), sequence=sequence, counted=counted)


def _ends(num_tokens: int, sequence: int, random: np.random.Generator) -> Sequence[int]:
    """Return the ends of documents, some longer than a sample, most shorter."""
    ends: list[int] = []
    while not ends or ends[-1] < num_tokens:
        length = int(random.integers(2, sequence + sequence // 2))
        ends.append(min(num_tokens, (ends[-1] if ends else 0) + length))
    return ends
