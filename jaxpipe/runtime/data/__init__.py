"""Data: text to tokens on disk, and tokens to batches that depend on seed and step alone.

::

    Source ─► Tokenizer ─► prepare ─► train.npy, eval.npy, dataset.json ─► open_dataset
                                                                              │
                                        sample(step), eval_batch(index) ◄─────┘

- `source`, `tokenizer`, `byte_pairs`: documents, and the tokens that encode them
- `prepare`, `held_out`, `record`: write a dataset, with its held-out part and its checksums
- `tokens`: open a dataset
- `batches`, `permutation`: the windows of tokens that a step reads
"""

from jaxpipe.runtime.data.batches import eval_batch, num_eval_batches, sample
from jaxpipe.runtime.data.byte_pairs import (
    BytePairs,
    byte_level_definition,
    load_byte_pairs,
    train_byte_pairs,
)
from jaxpipe.runtime.data.prepare import prepare
from jaxpipe.runtime.data.source import Source
from jaxpipe.runtime.data.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.data.tokens import Dataset, open_dataset

__all__ = [
    "BytePairs",
    "Bytes",
    "Dataset",
    "Source",
    "Tokenizer",
    "byte_level_definition",
    "eval_batch",
    "load_byte_pairs",
    "num_eval_batches",
    "open_dataset",
    "prepare",
    "sample",
    "train_byte_pairs",
]
