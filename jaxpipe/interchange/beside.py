"""Small files of a model that jaxpipe does not read, such as the chat template, kept beside it."""

from pathlib import Path
from typing import Final

from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import read_regular

BESIDE: Final = (
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)
_MOST_BYTES: Final = 2**26


def keep_beside(source: Path, target: Path) -> tuple[str, ...]:
    """Copy those of the files that a folder has to another folder; return their names.

    Raises:
        CheckpointError: one is no regular file, too large, or cannot be written.
    """
    names = tuple(name for name in BESIDE if (source / name).exists())
    for name in names:
        try:
            (target / name).write_bytes(read_regular(source / name, most_bytes=_MOST_BYTES))
        except OSError as error:
            raise CheckpointError(
                f"{source / name} cannot be copied to {target}: {error}; remove it, or name "
                "another folder"
            ) from error
    return names
