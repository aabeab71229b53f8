"""The card of an exported model: a README.md with the front matter that a hub reads.

::

    ---
    base_model, library_name, license, pipeline_tag, tags     fields in YAML
    ---
    # name                                                    for people
    | how it was trained |
    <!-- checksum -->                                         of the text above

The checksum tells a card that a user has edited from one that an export may replace.

Source of the fields: "Model cards" in the documentation of the hub of Hugging Face.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from jaxpipe.errors import CheckpointError
from jaxpipe.foreign_file import read_regular

CARD: Final = "README.md"
_MOST_BYTES: Final = 2**20
_SEAL: Final = "<!-- Written by `jaxpipe export`, which replaces it unless it was edited: {} -->\n"
_UNLICENSED: Final = (
    "No licence has been chosen: set `license` above before you publish this model.\n"
    "The licence of the base model may bind you."
)
_NAME: Final = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a card says.

    Args:
        name: the name of the model, its heading.
        base: the name or the folder of the model that training began with; None for no model.
        is_adapter: whether the folder holds adapters, for PEFT.
        facts: what was trained, in the order of the table, as texts.
    """

    name: str
    base: str | None
    is_adapter: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The whole file, its seal included.

        >>> print(ModelCard(name="a", base="b/c", facts={"steps": "3"}).text.partition("<!--")[0])
        ---
        base_model: "b/c"
        library_name: "transformers"
        license: "other"
        license_name: "not-chosen"
        pipeline_tag: "text-generation"
        tags: ["jaxpipe"]
        ---
        <BLANKLINE>
        # a
        <BLANKLINE>
        No licence has been chosen: set `license` above before you publish this model.
        The licence of the base model may bind you.
        <BLANKLINE>
        | training | |
        | --- | --- |
        | base model | b/c |
        | steps | 3 |
        <BLANKLINE>
        <BLANKLINE>
        """
        # JSON is YAML, and a name of a stranger can end no line of it.
        lines = (f"{name}: {json.dumps(value)}" for name, value in self._fields())
        base = {} if self.base is None else {"base model": self._shown_base(self.base)}
        facts = {**base, **self.facts}
        rows = (f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.items())
        body = "\n".join(
            [
                "---",
                *lines,
                "---",
                "",
                f"# {_cell(self.name)}",
                "",
                _UNLICENSED,
                "",
                "| training | |",
                "| --- | --- |",
                *rows,
                "\n",
            ]
        )
        return body + _SEAL.format(_checksum(body))

    def _shown_base(self, base: str) -> str:
        # A path says to all readers how a machine and its user are called.
        return base if _is_of_hub(base) else f"{Path(base).name} (a folder)"

    def _fields(self) -> Iterator[tuple[str, Any]]:
        if self.base is not None and _is_of_hub(self.base):
            yield "base_model", self.base
        yield "library_name", "peft" if self.is_adapter else "transformers"
        yield from (("license", "other"), ("license_name", "not-chosen"))
        yield "pipeline_tag", "text-generation"
        yield "tags", ["jaxpipe", *(["lora"] if self.is_adapter else [])]


def _is_of_hub(base: str) -> bool:
    return _NAME.fullmatch(base) is not None and not Path(base).exists()


def is_of_user(folder: Path) -> bool:
    """Return whether a folder has a README.md that is not as an export wrote it.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = folder / CARD
    if not path.exists():
        return path.is_symlink()
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}; remove it, or name another folder"
        ) from error
    body, mark, _ = text.rpartition("<!--")
    return not mark or text != body + _SEAL.format(_checksum(body))


def write_card(folder: Path, card: ModelCard) -> None:
    """Write the card of a model into its folder.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        (folder / CARD).write_text(card.text)
    except OSError as error:
        raise CheckpointError(f"`--out` {folder} cannot be written: {error}") from error


def _checksum(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def _cell(text: str) -> str:
    """Return a text that stays in its cell: no line, no markup of a stranger."""
    text = re.sub(r"\s+", " ", "".join(letter if letter.isprintable() else " " for letter in text))
    return re.sub(r"([\\`*_{}\[\]<>|#!])", r"\\\1", text.strip())
