"""The tokens of all documents, spooled to disk before they are divided into splits.

::

    folder/tokens.partial      tokens of all documents, with the begin and the end of text
           counted.partial     one byte for each token: 1 if it is a target; of masked sources
           documents.partial   the end of each document, as a number of tokens

They cannot be divided before their number is known. Neither the text nor the tokens are ever in
memory as a whole.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Integer, UInt

from jaxpipe.runtime.data.dataset.record import Dtype, TokenFile
from jaxpipe.runtime.data.dataset.tokenizer import Encoded, Frame, Tokenizer
from jaxpipe.runtime.data.preparation.document import Document
from jaxpipe.runtime.storage.atomic_write import sync_file
from jaxpipe.runtime.storage.block_checksums import write_block_checksums
from jaxpipe.runtime.storage.checksum import checksum_file

_COPIED = 1 << 22  # elements at a time
_MOST_CHARACTERS = 1 << 19  # of a document that is encoded as a whole, and of several together


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """The spooled tokens, mapped into memory; `counted` is None where all count."""

    tokens: UInt[np.ndarray, " tokens"]
    ends: UInt[np.ndarray, " documents"]
    counted: UInt[np.ndarray, " tokens"] | None


@contextmanager
def spooled(
    documents: Iterable[Document],
    folder: Path,
    tokenizer: Tokenizer,
    *,
    masked: bool,
    prefix: str = "",
    report: Callable[[int], None] | None = None,
) -> Iterator[TokenStream]:
    """Tokenize documents into a folder, and remove what is spooled at the end.

    Of `masked` ones, some tokens do not count. Names of files begin with the prefix.

    Raises:
        DataError: a document cannot be read.
    """
    dtypes: dict[str, Dtype] = {"tokens": dtype_of(tokenizer), "documents": "uint64"}
    if masked:
        dtypes["counted"] = "uint8"
    paths = {name: folder / f"{prefix}{name}.partial" for name in dtypes}
    try:
        _tokenize(documents, paths, tokenizer, report=report)
        arrays = {name: _mapped(paths[name], dtype) for name, dtype in dtypes.items()}
        yield TokenStream(
            tokens=arrays["tokens"], ends=arrays["documents"], counted=arrays.get("counted")
        )
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


def dtype_of(tokenizer: Tokenizer) -> Dtype:
    """Return the smallest dtype that all tokens fit into."""
    if tokenizer.vocabulary <= 1 << 8:
        return "uint8"
    return "uint16" if tokenizer.vocabulary <= 1 << 16 else "uint32"


def write_ranges(
    path: Path, array: UInt[np.ndarray, " elements"], ranges: Sequence[range], *, in_parts: bool
) -> TokenFile:
    """Copy ranges of an array into one .npy file.

    A file that is read `in_parts` gets checksums of its blocks.
    """
    num_elements = sum(map(len, ranges))
    # The header is written by hand: numpy's `save` would need all of it in memory.
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": (num_elements,)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in ranges:
            for start in range(part.start, part.stop, _COPIED):
                file.write(array[start : min(start + _COPIED, part.stop)].data)
    sync_file(path)
    name = array.dtype.name
    assert name in ("uint8", "uint16", "uint32", "uint64"), name
    return TokenFile(
        num_tokens=num_elements,
        dtype=name,
        checksum=checksum_file(path),
        blocks=write_block_checksums(path) if in_parts else None,
    )


def ends_in(
    ends: UInt[np.ndarray, " documents"], ranges: Sequence[range]
) -> UInt[np.ndarray, " pieces"]:
    """Return the ends of documents in a split that consists of ranges of the tokens.

    What a range cuts off is a document of its own.

    >>> ends_in(np.array([3, 8, 10], np.uint64), [range(0, 2), range(5, 10)]).tolist()
    [2, 5, 7]
    """
    found, written = [], 0
    for part in ranges:
        inside = ends[(ends > part.start) & (ends < part.stop)] - np.uint64(part.start)
        found += [inside + np.uint64(written), np.array([written + len(part)], np.uint64)]
        written += len(part)
    return np.concatenate([np.empty(0, np.uint64), *found])


def _tokenize(
    documents: Iterable[Document],
    paths: dict[str, Path],
    tokenizer: Tokenizer,
    *,
    report: Callable[[int], None] | None,
) -> None:
    dtype, frame = dtype_of(tokenizer), tokenizer.frame
    num_tokens = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context(path.open("wb")) for name, path in paths.items()}

        def write(tokens: Integer[np.ndarray, " tokens"], counted: Bool[np.ndarray, " tokens"]):
            nonlocal num_tokens
            files["tokens"].write(tokens.astype(dtype).data)
            if "counted" in files:
                files["counted"].write(counted.astype(np.uint8).data)
            num_tokens += len(tokens)
            if report is not None:
                report(num_tokens)

        masked = "counted" in files
        for document, parts in _encoded(documents, tokenizer, masked=masked):
            for part in _framed(document, parts, frame, masked=masked):
                write(*part)
            files["documents"].write(np.uint64(num_tokens).tobytes())


def _encoded(
    documents: Iterable[Document], tokenizer: Tokenizer, *, masked: bool
) -> Iterator[tuple[Document, Iterable[Encoded]]]:
    """Yield each document with the parts of its tokens, which must be taken before the next."""
    for batch in _batches(documents, masked=masked):
        if isinstance(batch, Document):
            tokens = tokenizer.encode_long(batch)
            yield batch, (Encoded(part, np.ones(len(part), bool)) for part in tokens)
        else:
            encoded = tokenizer.encode_records([tuple(document) for document in batch])
            yield from ((d, (part,)) for d, part in zip(batch, encoded, strict=True))


def _batches(documents: Iterable[Document], *, masked: bool) -> Iterator[list[Document] | Document]:
    """Yield documents in their order: records together, and long texts alone.

    A masked record, of which some tokens do not count, is in memory whatever its length.
    """
    batch: list[Document] = []
    size = 0
    for document in documents:
        length = document.num_characters
        is_long = length is None or (length > _MOST_CHARACTERS and not masked)
        if not is_long:
            batch.append(document)
            size += length or 0
        if batch and (is_long or size >= _MOST_CHARACTERS):
            yield batch
            batch, size = [], 0
        if is_long:
            yield document
    if batch:
        yield batch


def _framed(
    document: Document, parts: Iterable[Encoded], frame: Frame, *, masked: bool
) -> Iterator[Encoded]:
    """Yield the tokens of a document, with those of the frame around it."""
    if document.begins and frame.begin:
        yield _all_tokens(frame.begin, counts=not masked)
    yield from parts
    if document.ends:  # a model learns where a completion ends
        yield _all_tokens(frame.separator, counts=document.end_counts)


def _all_tokens(tokens: Sequence[int], *, counts: bool) -> Encoded:
    return Encoded(np.array(tokens, np.uint32), np.full(len(tokens), counts))


def _mapped(path: Path, dtype: Dtype) -> UInt[np.ndarray, " elements"]:
    # A file of no bytes cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
