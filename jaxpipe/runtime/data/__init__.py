"""Data: texts and pictures to arrays on disk, and to batches that depend on seed and step alone.

::

    Source ─► Tokenizer ─► prepare ─► train.npy, eval.npy, dataset.json ─► open_dataset
                                                                              │
                     train_samples(step), eval_samples(index) ◄─── Mixture ◄──┘

- `source`, `document`, `arrow_rows`: documents of texts and records, and what counts in them
- `tokenizer`, `byte_pairs`: the tokens that encode them
- `prepare`, `token_stream`, `held_out`, `record`: write a dataset, with its held-out part and its
  checksums
- `labelled`, `labelled_text`, `pictures`: datasets of samples with labels
- `tokens`: open a dataset; `input_shape`: the inputs of labelled samples
- `batches`, `permutation`: the windows of tokens, or the samples, that a step reads
- `samples`, `source_order`, `mixture`: the samples of a split, and of a mixture of datasets
"""

from jaxpipe.runtime.data.batches import sample
from jaxpipe.runtime.data.byte_pairs import (
    BytePairs,
    byte_level_definition,
    load_byte_pairs,
    same_tokens,
    train_byte_pairs,
)
from jaxpipe.runtime.data.document import Fields
from jaxpipe.runtime.data.input_shape import InputShape
from jaxpipe.runtime.data.labelled import Labelled, prepare_labelled
from jaxpipe.runtime.data.labelled_text import labelled_lines, read_labelled_text
from jaxpipe.runtime.data.mixture import Mixture, mixture_of
from jaxpipe.runtime.data.pictures import draw_glyphs, read_pictures
from jaxpipe.runtime.data.prepare import prepare
from jaxpipe.runtime.data.samples import Samples
from jaxpipe.runtime.data.source import Source
from jaxpipe.runtime.data.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.tokens import Dataset, Labels, dataset_folder, open_dataset

__all__ = [
    "BytePairs",
    "Bytes",
    "Dataset",
    "Fields",
    "InputShape",
    "Labelled",
    "Labels",
    "Mixture",
    "Samples",
    "Source",
    "Tokenizer",
    "byte_level_definition",
    "dataset_folder",
    "draw_glyphs",
    "labelled_lines",
    "load_byte_pairs",
    "mixture_of",
    "open_dataset",
    "prepare",
    "prepare_labelled",
    "read_labelled_text",
    "read_pictures",
    "same_tokens",
    "sample",
    "train_byte_pairs",
]
