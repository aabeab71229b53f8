"""Encode a text of any length in windows, with the tokens that the text has as a whole.

::

    text     ├────────────── window ──────────────┤
    tokens   ├──┼───┼─┼──┼───┼──┼─┼──┼───┼──┼──┼──┤
                              └ context ┘cut└ margin ┘
             ├──── written ─────────────┤
    next                      ├─ context ─┼──────── window ──────────────┤
                              (its tokens  are written already)

A token may depend on what stands around it: a prefix at the start, merges across a boundary. The
text around a cut is encoded once more without what comes before and after it; the tokens next to
the cut have to be the same. Otherwise another cut is tried, and then a longer window.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer, UInt32

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_CUTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The characters that are encoded at once, and those around a cut that are compared."""

    length: int = 1 << 19
    context: int = 1 << 12


@dataclass(frozen=True, slots=True)
class _Cut:
    """The number of tokens before a cut; where its context begins, and how many tokens that has."""

    token: int
    context_begin: int
    context_tokens: int


def encode_windows(
    engine: "Tokenizer", texts: Iterable[str], window: Window
) -> Iterator[UInt32[np.ndarray, " tokens"]]:
    """Yield the tokens of the text that `texts` make together, as the engine has them for it all.

    Memory is that of a window; a text without a safe cut, such as one word of many millions of
    letters that are merged from its end, needs more.
    """
    buffer, skipped, limit = "", 0, window.length
    for text in texts:
        buffer += text
        while len(buffer) >= limit:
            part = buffer[:limit]
            encoding = engine.encode(part, add_special_tokens=False)
            cut = _safe_cut(engine, part, encoding, skipped=skipped, window=window)
            if cut is None:
                limit += window.length
                continue
            yield np.array(encoding.ids[skipped : cut.token], np.uint32)
            buffer, skipped = buffer[cut.context_begin :], cut.context_tokens
            limit = window.length
    if buffer:
        yield np.array(engine.encode(buffer, add_special_tokens=False).ids[skipped:], np.uint32)


def _safe_cut(
    engine: "Tokenizer", text: str, encoding: "Encoding", *, skipped: int, window: Window
) -> _Cut | None:
    """Return a cut next to which tokens do not depend on the text farther away."""
    offsets: np.ndarray = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    ids: np.ndarray = np.array(encoding.ids, np.uint32)
    begins, ends = offsets[:, 0], offsets[:, 1]
    # Where no character is before a cut and behind it: tokens of one character share its offsets.
    clean = np.concatenate([[False], (begins[1:] >= ends[:-1]) & (begins[1:] > begins[:-1])])
    latest = len(text) - window.context
    cuts = np.flatnonzero(clean & (begins <= latest) & (np.arange(len(ids)) > skipped))
    for token in cuts[::-1][: _CUTS * 16 : 16].tolist():
        first = int(np.searchsorted(begins, begins[token] - window.context))
        first = int(np.flatnonzero(clean[: first + 1])[-1]) if clean[: first + 1].any() else 0
        begin, end = int(begins[first]), int(begins[token]) + window.context // 2
        around = engine.encode(text[begin:end], add_special_tokens=False)
        count = _same_before(ids[:token], around, position=int(begins[token]) - begin)
        if count is not None and 2 * count[0] >= min(token, token - first):
            return _Cut(token=token, context_begin=begin, context_tokens=count[1])
    return None


def _same_before(
    ids: Integer[np.ndarray, " tokens"], around: "Encoding", *, position: int
) -> tuple[int, int] | None:
    """Return how many tokens before a position are those of `ids`, and how many there are."""
    num_before = sum(begin < position for begin, _ in around.offsets)
    after = around.offsets[num_before:]
    if any(begin < position for begin, _ in after) or (after and after[0][0] != position):
        return None
    before: np.ndarray = np.array(around.ids[:num_before], np.uint32)
    count = min(len(before), len(ids))
    same = before[len(before) - count :] == ids[len(ids) - count :]
    return int(np.argmin(same[::-1])) if not same.all() else count, num_before
