"""What the shell of every script does: find the checkpoint, tell the ranks, say how it ended.

::

    find_newest ──► launcher & ──► a signal: USR1 to it ──► wait ──► exit code

No exit code of a launcher says enough. Ranks that were told to stop end in order; so does mpirun
(Open MPI 5.0.11) after it has lost a host, and, where ranks survive each other, after all of them
were killed. What counts is the checkpoint of the last step.
"""

import shlex

from jaxpipe.launch.spec import Launch
from jaxpipe.runtime.process.mpirun import MEMORY_SETTINGS

STOPPED = 143
"""The exit code of a script whose ranks were told to stop: 128 plus SIGTERM, as of `jaxpipe`."""

EXPORT = "-x GLIBC_TUNABLES"
"""Lets mpirun give ranks on other hosts what `begin_lines` has set, as srun does by itself."""


def begin_lines(launch: Launch) -> list[str]:
    """Return lines that set `jaxpipe`, the `last` checkpoint, the `newest`, and `resume`, its flag.

    Ranks keep memory as those do that `jaxpipe train` starts. mpirun looks for words on other
    hosts' paths, which may be others: the command is named in full.
    """
    return [
        *(f"export {name}=${{{name}:-{value}}}" for name, value in MEMORY_SETTINGS.items()),
        "jaxpipe=$(command -v jaxpipe) || { echo 'no `jaxpipe` is on the path' >&2; exit 127; }",
        f"folder={shlex.quote(launch.folder)}",
        f"last=$folder/checkpoints/step-{launch.steps:08d}/manifest.json",
        "find_newest() {",
        "  newest=''",
        '  for manifest in "$folder"/checkpoints/step-????????/manifest.json; do',
        '    if [[ -e "$manifest" ]]; then newest=$manifest; fi',
        "  done",
        "}",
        "find_newest",
        'if [[ -n "$newest" ]]; then resume=(--resume); else resume=(); fi',
    ]


def wait_lines() -> list[str]:
    """Return lines that start after `launcher &`, pass signals on, and set `code` when it ended."""
    return [
        "ranks=$!",
        "told=''",
        "# The ranks save after their step, and stop.",
        "trap 'told=yes; kill -USR1 \"$ranks\" 2> /dev/null' TERM USR1",
        "trap 'kill -TERM \"$ranks\" 2> /dev/null' INT HUP",
        'while kill -0 "$ranks" 2> /dev/null; do wait "$ranks"; done',
        'wait "$ranks"',
        "code=$?",
        *verdict_lines(),
        'exit "$code"',
    ]


def verdict_lines() -> list[str]:
    """Return lines that correct `code`: it stays 0 only if the model was trained to the end."""
    return [
        "# Ranks that were told to stop end in order, too; so does an mpirun that has lost a host.",
        'if (( code == 0 )) && [[ ! -e "$last" ]]; then',
        f'  if [[ -n "$told" ]]; then code={STOPPED}; else code=1; fi',
        "fi",
    ]
