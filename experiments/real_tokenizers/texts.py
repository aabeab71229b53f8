"""Texts of fifteen kinds, and conversations: what tokenizers treat differently."""

import json
import random
import string
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Any, Final

PER_KIND: Final = 8
SEED: Final = 0
_DRAWN: Final = tomllib.loads((Path(__file__).with_name("texts.toml")).read_text("utf-8"))


def _prose(source: random.Random) -> str:
    text = topics[source.choice(sorted(topics))]
    begin = source.randrange(max(1, len(text) - 400))
    return text[begin : begin + source.randint(60, 400)]


def _drawn(letters: str, most: int) -> Callable[[random.Random], str]:
    return lambda source: "".join(source.choices(letters, k=source.randint(1, most)))


def _named(source: random.Random) -> str:
    words = ("user", " ", "\n", "hello", "é")
    return "".join(
        source.choice(_DRAWN["names"]) if source.random() < 0.5 else source.choice(words)
        for _ in range(8)
    )


def _numbers(source: random.Random) -> str:
    number = source.choice((0, 7, 1234567, 3.14159, -1e-12, 2**70))
    return f"{number} {source.randrange(10**9):,} 0x{source.randrange(2**32):x} ٣٤٥ 12:30:59"


def _contractions(source: random.Random) -> str:
    ends = ("'s", "'LL", "'ve", "n't", "'D", "\u2019re")
    words = ("they", "I", "DON", "we ", "it")
    return " ".join(source.choice(words) + source.choice(ends) for _ in range(9))


def _object(source: random.Random) -> str:
    fields = {source.choice(_DRAWN["east"])[:3]: source.random(), "path": "C:\\x\\y", "none": None}
    return json.dumps(fields, indent=source.choice((None, 2, "\t")), ensure_ascii=False)


def _link(source: random.Random) -> str:
    path = "/".join("".join(source.choices(string.ascii_lowercase, k=5)) for _ in range(3))
    return f'<a href="https://example.org/{path}?q=%C3%A9&n={source.random()}#x">é_{path}</a>'


def _code(source: random.Random) -> str:
    depth = source.randint(1, 5)
    body = "\n".join("    " * level + f"if x[{level}] != y:  # ümlaut" for level in range(depth))
    return f"def f(x, *y, **z):\r\n{body}\n\t\treturn f'{{x!r}}' // 2 ** -1\n\n\n"


def _chosen(kind: str) -> Callable[[random.Random], str]:
    return lambda source: " ".join(source.sample(_DRAWN[kind], source.randint(1, 3)))


KINDS: Final[Mapping[str, Callable[[random.Random], str]]] = MappingProxyType(
    {
        "prose": _prose,
        "code": _code,
        "blanks": _drawn(" \t\n\r\u00a0\u3000ab", 60),
        "numbers": _numbers,
        "contractions": _contractions,
        "scripts": _chosen("scripts"),
        "east": _chosen("east"),
        "emoji": _chosen("emoji"),
        "combined": _chosen("combined"),
        "control": _drawn("".join(map(chr, (*range(1, 32), *range(127, 161)))) + "a", 40),
        "objects": _object,
        "links": _link,
        "letters": _drawn(string.ascii_letters + string.digits + "+/=", 400),
        "names": _named,
        "edges": _drawn(" \n\ta▁Ġ.", 4),
    }
)


def texts() -> Iterator[tuple[str, str]]:
    """Yield kinds with their texts, always the same."""
    for kind, draw in KINDS.items():
        source = random.Random(f"{kind} {SEED}")
        for _ in range(PER_KIND):
            yield kind, draw(source)


def conversations() -> Iterator[list[dict[str, Any]]]:
    """Yield conversations of one turn and several, with a system message or without."""
    drawn = [text.strip() for kind, text in texts() if kind not in ("blanks", "names", "control")]
    words = [text for text in drawn if text]
    for number, first in enumerate(range(0, len(words) - 8, 4)):
        said = words[first : first + 8]
        turns = [
            {"role": ("user", "assistant")[place % 2], "content": text}
            for place, text in enumerate(said[: 2 + 2 * (number % 3)])
        ]
        system = [{"role": "system", "content": said[7]}] if number % 2 else []
        yield [*system, *turns]
