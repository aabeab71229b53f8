"""Labelled text: lines of a label, a tab and a text, as sequences of equal length.

::

    line      duplicate<TAB>How old is it?<TAB>What is its age?
    sequence  0  H  o  w  ...  <TAB>  W  h  a  t  ...  ?  0  0  0
              └─ position that the head reads               └─ the separator fills the rest
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.labelled import Labelled, smallest_unsigned
from jaxpipe.runtime.data.tokenizer import Tokenizer


def read_labelled_text(path: Path, *, tokenizer: Tokenizer, sequence: int) -> Labelled:
    """Return the samples of a file of lines, in memory; longer texts are cut.

    The classes are the labels in the file, sorted. A text may have tabs of its own.

    Raises:
        DataError: the file is missing, is not UTF-8, or a line has no label and text; or `sequence`
            has no room for a text.
    """
    if sequence < 2:
        raise DataError(
            f"`sequence` must be at least 2, the class's position and a token, not {sequence}"
        )
    lines = list(labelled_lines(path))
    classes = tuple(sorted({label for label, _ in lines}))
    number = {label: n for n, label in enumerate(classes)}
    separator = tokenizer.separator[0]
    inputs = np.full((len(lines), sequence), separator, np.uint32)
    for row, (_, text) in zip(inputs, lines, strict=True):
        tokens = tokenizer.encode(text)[: sequence - 1]
        row[1 : 1 + len(tokens)] = tokens
    labels = np.array([number[label] for label, _ in lines], np.int64)
    return Labelled(
        inputs=smallest_unsigned(inputs, below=tokenizer.vocabulary),
        labels=smallest_unsigned(labels, below=max(len(classes), 1)),
        classes=classes,
        source=path.name,
        tokenizer=tokenizer,
    )


def labelled_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line that is not blank.

    Raises:
        DataError: the file is missing, is not UTF-8, or a line has no label and text.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                label, tab, text = line.rstrip("\n").partition("\t")
                if not line.strip():
                    continue
                if not tab or not label or not text:
                    raise DataError(
                        f"`source` must have a label, a tab and a text in each line; line {number} "
                        f"of {path} has not; correct it"
                    )
                yield label, text
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"`source` must be a readable file of UTF-8, not {path}: {error}; name another"
        ) from None
