"""The files of a tokenizer, read from the folder of its owner, and kept beside data and runs.

::

    tokenizer.json            pieces, merges, normalization          needed
    tokenizer_config.json     special tokens, class, chat template   if they are there
    special_tokens_map.json, added_tokens.json
    chat_template.jinja, additional_chat_templates/*.jinja
    generation_config.json    ends of text; as transformers, else those of config.json
    tokenizer.model           SentencePiece, for other programs
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import decode_text, parse_json, read_regular, reason_of
from jaxpipe.runtime.data.dataset.chat_template import TEMPLATE, TEMPLATES
from jaxpipe.runtime.data.dataset.tokenizer_config import (
    ADDED_TOKENS,
    CONFIG,
    GENERATION,
    SPECIAL_TOKENS,
    TOKENIZER,
    tokenizer_class,
)

MODEL: Final = "tokenizer.model"
NAMES: Final = (TOKENIZER, CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, TEMPLATE, GENERATION, MODEL)
"""The files but for those of `additional_chat_templates`."""
MOST_BYTES: Final = 2**28
_MOST_TEMPLATES: Final = 64
_TEMPLATE_FILE: Final = re.compile(rf"{TEMPLATES}/[\w-][\w.-]*\.jinja")


def read_tokenizer_files(path: Path, *, inside: bool = False) -> dict[str, bytes]:
    """Return the files of a tokenizer by name: of a folder, or of that of a `tokenizer.json`.

    A `tokenizer.json` under another name is read alone. Two things of a `config.json` become part
    of them, as transformers reads them: its ends of text, and that its kind of model takes a
    `tokenizer.json` as it is.

    Raises:
        DataError: there is no `tokenizer.json`, or a file cannot be read.
    """
    file = path / TOKENIZER if path.is_dir() else path
    try:
        files = {TOKENIZER: read_regular(file, most_bytes=MOST_BYTES, inside=inside)}
        decode_text(files[TOKENIZER])
        if file.name == TOKENIZER:
            for beside in _beside(file.parent):
                name = beside.relative_to(file.parent).as_posix()
                files[name] = read_regular(beside, most_bytes=MOST_BYTES, inside=inside)
            files |= _of_model(file.parent / "config.json", files, inside=inside)
    except (OSError, ValueError) as error:
        raise DataError(
            f"`tokenizer` must be the path of a readable tokenizer.json, not {path}: "
            f"{reason_of(error)}; name another, or train one by giving `vocabulary`"
        ) from None
    return files


def is_tokenizer_file(name: str) -> bool:
    """Return whether a name is that of a file of tokenizers, which leads nowhere else.

    >>> is_tokenizer_file("additional_chat_templates/tool_use.jinja")
    True
    >>> is_tokenizer_file("../tokenizer.json")
    False
    """
    return name in NAMES or _TEMPLATE_FILE.fullmatch(name) is not None


def write_tokenizer_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a tokenizer into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _beside(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in NAMES[1:] if (folder / name).is_file())
    yield from sorted((folder / TEMPLATES).glob("*.jinja"))[:_MOST_TEMPLATES]


def _of_model(path: Path, files: Mapping[str, bytes], *, inside: bool) -> dict[str, bytes]:
    """Return the files that a `config.json` changes."""
    if not path.is_file():
        return {}
    model = parse_json(read_regular(path, most_bytes=MOST_BYTES, inside=inside), dict[str, Any])
    changed = {}
    if GENERATION not in files and model.get("eos_token_id") is not None:
        ends = {"eos_token_id": model["eos_token_id"]}
        changed[GENERATION] = msgspec.json.format(msgspec.json.encode(ends))
    if CONFIG in files and model.get("model_type") not in (None, "llama"):
        config = parse_json(files[CONFIG], dict[str, Any])
        if tokenizer_class(config) == "LlamaTokenizer":
            config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
            changed[CONFIG] = msgspec.json.format(msgspec.json.encode(config))
    return changed
