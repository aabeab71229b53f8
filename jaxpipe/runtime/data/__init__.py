"""Data: texts and pictures to arrays on disk, and to batches that depend on seed and step alone.

::

    Source ─► Tokenizer ─► prepare ─► train.npy, eval.npy, dataset.json ─► open_dataset
                                                                              │
                     train_samples(step), eval_samples(index) ◄─── Mixture ◄──┘

- `preparation`: documents and labelled samples to arrays, a held-out part, and their record
- `dataset`: the record, the arrays and the tokenizer of a prepared dataset, opened
- `order`: the windows of tokens, or the samples, that a step reads of one dataset or of several
"""

from jaxpipe.runtime.data.dataset.byte_pairs import (
    BytePairs,
    byte_level_definition,
    load_byte_pairs,
    same_tokens,
    train_byte_pairs,
)
from jaxpipe.runtime.data.dataset.dataset import (
    Dataset,
    InputShape,
    Labels,
    dataset_folder,
    open_dataset,
)
from jaxpipe.runtime.data.dataset.tokenizer import Bytes, Frame, Piece, Tokenizer
from jaxpipe.runtime.data.order.batches import sample
from jaxpipe.runtime.data.order.mixture import Mixture, mixture_of
from jaxpipe.runtime.data.order.samples import Samples
from jaxpipe.runtime.data.preparation.bad_records import OnBad
from jaxpipe.runtime.data.preparation.chat_text import ChatForm, SpecialTokens, chat_form
from jaxpipe.runtime.data.preparation.conversation import (
    Conversation,
    RecordLayout,
    layout_of,
    read_conversation,
)
from jaxpipe.runtime.data.preparation.document import Document, Fields
from jaxpipe.runtime.data.preparation.labelled import (
    Labelled,
    labelled_lines,
    prepare_labelled,
    read_labelled_text,
)
from jaxpipe.runtime.data.preparation.pictures import draw_glyphs, read_pictures
from jaxpipe.runtime.data.preparation.prepare import prepare
from jaxpipe.runtime.data.preparation.source import Source

__all__ = [
    "BytePairs",
    "Bytes",
    "ChatForm",
    "Conversation",
    "Dataset",
    "Document",
    "Fields",
    "Frame",
    "InputShape",
    "Labelled",
    "Labels",
    "Mixture",
    "OnBad",
    "Piece",
    "RecordLayout",
    "Samples",
    "Source",
    "SpecialTokens",
    "Tokenizer",
    "byte_level_definition",
    "chat_form",
    "dataset_folder",
    "draw_glyphs",
    "labelled_lines",
    "layout_of",
    "load_byte_pairs",
    "mixture_of",
    "open_dataset",
    "prepare",
    "prepare_labelled",
    "read_conversation",
    "read_labelled_text",
    "read_pictures",
    "same_tokens",
    "sample",
    "train_byte_pairs",
]
