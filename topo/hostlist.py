"""SLURM's lists of names: `gpu[01-03,7],login` is gpu01, gpu02, gpu03, gpu7 and login."""

import re
from itertools import product

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the names; ranges keep their leading zeros.

    >>> expand("gpu[08-10],login")
    ('gpu08', 'gpu09', 'gpu10', 'login')
    >>> expand("r[1-2]n[3,5]")
    ('r1n3', 'r1n5', 'r2n3', 'r2n5')

    Raises:
        ValueError: a bracket holds something else than numbers and ranges.
    """
    names: list[str] = []
    for word in filter(None, _COMMA_OUTSIDE_BRACKETS.split(text.strip())):
        parts = _BRACKETS.split(word)  # text, inside of a bracket, text, ..., text
        choices = [
            _numbers(part, text) if inside % 2 else (part,) for inside, part in enumerate(parts)
        ]
        names.extend("".join(chosen) for chosen in product(*choices))
    return tuple(names)


def _numbers(ranges: str, text: str) -> tuple[str, ...]:
    numbers: list[str] = []
    for word in ranges.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise ValueError(f"{text!r} must hold ranges such as [01-04,7] in its brackets")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"{text!r}: the range {word.strip()} runs backwards")
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return tuple(numbers)
