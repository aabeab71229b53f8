"""What the shell of every script does: find the checkpoint, tell the ranks, say how it ended.

::

    find_newest ──► launcher & ──► a signal: USR1 to it ──► wait ──► exit code

No launcher's own exit code says enough: ranks that were told to stop end in order, and an `mpirun`
that lets ranks survive each other ends in order though all of them were killed.
"""

import shlex

from jaxpipe.launch.job import Launch

STOPPED = 143
"""The exit code of a script whose ranks were told to stop: 128 plus SIGTERM, as of `jaxpipe`."""


def begin_lines(launch: Launch) -> list[str]:
    """Return lines that set `jaxpipe`, the `last` checkpoint, the `newest`, and `resume`, its flag.

    mpirun looks for words on other hosts' paths, which may be others: the command is named in full.
    """
    lines = [
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
    return [*lines, 'rm -f "$folder/ended"'] if launch.survives else lines


def wait_lines() -> list[str]:
    """Return lines that start after `launcher &`, pass signals on, and set `code` when it ended."""
    return [
        "ranks=$!",
        "# The ranks save after their step, and stop.",
        "trap 'kill -USR1 \"$ranks\" 2> /dev/null' TERM USR1",
        "trap 'kill -TERM \"$ranks\" 2> /dev/null' INT HUP",
        'while kill -0 "$ranks" 2> /dev/null; do wait "$ranks"; done',
        'wait "$ranks"',
        "code=$?",
    ]


def verdict_lines(launch: Launch) -> list[str]:
    """Return lines that correct `code`: it stays 0 only if the model was trained to the end."""
    lines = [
        "# Ranks that were told to stop end in order, too.",
        f'if (( code == 0 )) && [[ ! -e "$last" ]]; then code={STOPPED}; fi',
    ]
    if not launch.survives:
        return lines
    return [
        "# This mpirun ends with 0 though all ranks were killed: those that end leave a mark.",
        'if (( code == 0 )) && [[ ! -e "$folder/ended" ]]; then code=1; fi',
        *lines,
    ]
