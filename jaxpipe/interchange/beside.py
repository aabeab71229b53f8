"""Small files of a model that jaxpipe does not read, such as the chat template, kept beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import read_regular
from jaxpipe.runtime.data.dataset.chat_template import TEMPLATES
from jaxpipe.runtime.data.dataset.tokenizer_config import GENERATION, TOKENIZER
from jaxpipe.runtime.data.dataset.tokenizer_files import NAMES

BESIDE: Final = (
    *(name for name in NAMES if name != TOKENIZER),
    "chat_template.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model.v3",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    TEMPLATES,
)
"""Files that tokenizers of `transformers` read, and a folder of templates."""
_MOST_BYTES: Final = 2**26


def keep_beside(source: Path, target: Path) -> tuple[str, ...]:
    """Copy those of the files that a folder has to another folder; return their names.

    Raises:
        CheckpointError: one is no regular file, too large, or cannot be written.
    """
    names = tuple(
        str(path.relative_to(source))
        for name in BESIDE
        for path in (sorted((source / name).glob("*.jinja")) or [source / name])
        if path.exists() and not path.is_dir()
    )
    for name in names:
        try:
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(read_regular(source / name, most_bytes=_MOST_BYTES))
        except OSError as error:
            raise CheckpointError(
                f"{source / name} cannot be copied to {target}: {error}; remove it, or name "
                "another folder"
            ) from error
    return names


def write_generation(folder: Path, special: Mapping[str, Any]) -> None:
    """Write a `generation_config.json` with these ids of special tokens.

    Raises:
        CheckpointError: it cannot be written.
    """
    fields = {name: value for name, value in special.items() if value is not None}
    try:
        (folder / GENERATION).write_bytes(
            msgspec.json.format(msgspec.json.encode(fields), indent=2) + b"\n"
        )
    except OSError as error:
        raise CheckpointError(f"`--out` {folder} cannot be written: {error}") from error
