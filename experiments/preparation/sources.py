"""Files of text of a given size: the documentation of CPython, repeated with new numbers."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

_SEED = "jaxpipe"


def words() -> Iterator[str]:
    """Yield an endless sequence of texts of CPython's documentation, with numbers between."""
    from pydoc_data.topics import topics

    texts = [topics[name] for name in sorted(topics)]
    for number in count():
        yield f"{_SEED} {number}\n"
        yield texts[number % len(texts)]


def documents(characters: int) -> Iterator[str]:
    """Yield an endless sequence of texts of `characters` characters each."""
    text = ""
    for part in words():
        text += part
        while len(text) >= characters:
            yield text[:characters]
            text = text[characters:]


def write_source(path: Path, kind: str, *, num_bytes: int, characters: int = 3000) -> int:
    """Write a file of the given kind, of at least `num_bytes` bytes; return its size.

    Raises:
        ValueError: there is no such kind.
    """
    size = 0
    with path.open("w", newline="") as file:
        if kind == "records":
            for text in documents(characters):
                size += file.write(json.dumps({"text": text}) + "\n")
                if size >= num_bytes:
                    break
        elif kind in ("text", "one line", "one record"):
            file.write('{"text": "' if kind == "one record" else "")
            for part in words():
                text = part if kind == "text" else part.replace("\n", " ")
                size += file.write(json.dumps(text)[1:-1] if kind == "one record" else text)
                if size >= num_bytes:
                    break
            file.write('"}\n' if kind == "one record" else "")
        else:
            raise ValueError(f"`kinds` must be records, text, one line or one record, not {kind!r}")
    return path.stat().st_size
