"""Regular expressions of others, compared with names in a process that has a deadline.

A short expression can take longer than any run on a short name (catastrophic backtracking), and
Python's `re` cannot be interrupted.
"""

import subprocess
import sys
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from jaxpipe.errors import ConfigError

_DEADLINE_S: Final = 20.0
_PROGRAM: Final = """
import json, re, sys
patterns, names = json.load(sys.stdin)
answer = {}
for pattern in patterns:
    try:
        answer[pattern] = [name for name in names if re.fullmatch(pattern, name)]
    except (re.error, OverflowError, RecursionError):
        answer[pattern] = None
json.dump(answer, sys.stdout)
"""


def names_matched(
    patterns: Collection[str], names: Collection[str], *, field: str
) -> Mapping[str, frozenset[str]]:
    r"""Return the names that each pattern matches completely, as `re.fullmatch` does.

    A `field` has the patterns.

    Raises:
        ConfigError: a pattern is no regular expression, or is not done in time.

    >>> sorted(names_matched([r".*\.q"], ["a.q", "b.q", "a.qq"], field="x")[r".*\.q"])
    ['a.q', 'b.q']
    """
    if not patterns:
        return {}
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    sent = msgspec.json.encode((tuple(patterns), tuple(names)))
    try:
        done = subprocess.run(
            command, input=sent, capture_output=True, timeout=_DEADLINE_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"`{field}` must be done with {len(names)} names within {_DEADLINE_S:.0f} s, and "
            f"{min(patterns, key=len)!r:.80} is not; list the names in its place"
        ) from None
    matched = msgspec.json.decode(done.stdout, type=dict[str, list[str] | None])
    for pattern, matching in matched.items():
        if matching is None:
            raise ConfigError(
                f"`{field}` must be a regular expression, not {pattern!r:.80}; list the names"
            )
    return {pattern: frozenset(matching or ()) for pattern, matching in matched.items()}
