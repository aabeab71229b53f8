"""A prepared dataset, opened: two memory-mapped token files and their tokenizer."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt

from jaxpipe.errors import DataError
from jaxpipe.runtime.data.byte_pairs import load_byte_pairs
from jaxpipe.runtime.data.record import TOKENIZER, Record, TokenFile, read_record
from jaxpipe.runtime.data.tokenizer import Bytes, Tokenizer
from jaxpipe.runtime.storage.checksum import checksum_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The tokens of both splits, on disk until they are read, and their tokenizer."""

    train: UInt[np.ndarray, " train_tokens"]
    eval: UInt[np.ndarray, " eval_tokens"]
    tokenizer: Tokenizer
    source: str

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self.tokenizer.vocabulary


def open_dataset(folder: Path, *, verify: bool = True) -> Dataset:
    """Open the dataset that `prepare` wrote.

    Verifying reads all files once; one rank per host is enough. Without it, a truncated file or a
    wrong dtype is still detected, a flipped token is not.

    Raises:
        DataError: the folder is no dataset, or a file is missing or has changed.
    """
    record = read_record(folder)
    dataset = Dataset(
        train=_open_tokens(folder / "train.npy", record.train, verify=verify),
        eval=_open_tokens(folder / "eval.npy", record.eval, verify=verify),
        tokenizer=_open_tokenizer(folder / TOKENIZER, record, verify=verify),
        source=record.source,
    )
    if dataset.vocabulary != record.vocabulary:
        raise _corrupt(folder / TOKENIZER, f"it has {dataset.vocabulary} tokens")
    return dataset


def _open_tokens(path: Path, expected: TokenFile, *, verify: bool) -> UInt[np.ndarray, " tokens"]:
    if verify:
        _verify(path, expected.checksum)
    try:
        # Mapped: a dataset may be larger than memory, and the ranks of a host share its pages.
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise _corrupt(path, str(error)) from None
    found = f"{getattr(tokens, 'dtype', None)}{list(getattr(tokens, 'shape', ()))}"
    wanted = f"{expected.dtype}[{expected.num_tokens}]"
    if found != wanted:
        raise _corrupt(path, f"it holds {found}, not {wanted}")
    return tokens


def _open_tokenizer(path: Path, record: Record, *, verify: bool) -> Tokenizer:
    if record.tokenizer_checksum is None:
        return Bytes()
    if verify:
        _verify(path, record.tokenizer_checksum)
    return load_byte_pairs(path)


def _verify(path: Path, checksum: str) -> None:
    try:
        found = checksum_file(path)
    except OSError as error:
        raise _corrupt(path, str(error)) from None
    if found != checksum:
        raise _corrupt(path, "its content does not match its checksum")


def _corrupt(path: Path, problem: str) -> DataError:
    return DataError(
        f"`folder` must hold an intact dataset; {path} is not: {problem}; prepare it again with"
        " `jaxpipe data prepare`"
    )
