"""The shell lines of every script: find the checkpoint, forward signals, return an exit code.

::

    find_newest ──► launcher & ──► a signal: USR1 to it ──► wait ──► exit code

The exit code of a launcher is not enough. It is 0 if ranks were asked to stop, but also if mpirun
(Open MPI 5.0.11) has lost a host, or, where ranks survive the loss of others, if all of them were
killed. The checkpoint of the last step decides.
"""

import shlex
from collections.abc import Iterable

from jaxpipe.launch.launch_spec import Launch
from jaxpipe.runtime.process.memory_settings import MEMORY_SETTINGS, TUNABLES

STOPPED = 143
"""Exit code of a script whose ranks were asked to stop: 128 plus SIGTERM, as of `jaxpipe`."""

EXPORT = f"-x {TUNABLES}"
"""Makes mpirun export to other hosts what `begin_lines` has set, as srun does by itself."""


def file_lines(target: str, lines: Iterable[str], *, word: str) -> list[str]:
    """Return the lines that write a file; `word` ends them, with `_` behind it if it is a line.

    >>> file_lines("/tmp/hosts", ["HOSTS", "reboot"], word="HOSTS")
    ["cat > /tmp/hosts <<'HOSTS_'", 'HOSTS', 'reboot', 'HOSTS_']
    """
    lines = list(lines)
    while word in lines:
        word += "_"
    return [f"cat > {target} <<'{word}'", *lines, word]


def begin_lines(launch: Launch) -> list[str]:
    """Return lines that set `jaxpipe`, the `last` checkpoint, the `newest`, and `resume`, its flag.

    The memory settings are those of `jaxpipe train`. mpirun searches the path of each host, and
    hosts may differ: the command is a full path.
    """
    return [
        # A setting of the user is kept.
        *(f"export {name}=${{{name}:-{value}}}" for name, value in MEMORY_SETTINGS.items()),
        "jaxpipe=$(command -v jaxpipe) || { echo 'no `jaxpipe` is on the path' >&2; exit 127; }",
        *(
            _find_in_folder(launch)
            if launch.store is None
            else _find_in_store(launch.store, launch)
        ),
        "find_newest",
        # An array: empty, it adds no argument, not an empty one.
        'if [[ -n "$newest" ]]; then resume=(--resume); else resume=(); fi',
    ]


def _find_in_folder(launch: Launch) -> list[str]:
    return [
        f"folder={shlex.quote(launch.folder)}",
        f"last=$folder/checkpoints/step-{launch.steps:08d}/manifest.json",
        "find_newest() {",
        # Eight digits each: the last name is the newest. A pattern without a match stays as it is.
        "  newest=''",
        '  for manifest in "$folder"/checkpoints/step-????????/manifest.json; do',
        '    if [[ -e "$manifest" ]]; then newest=$manifest; fi',
        "  done",
        "}",
    ]


def _find_in_store(store: str, launch: Launch) -> list[str]:
    """Return the lines for checkpoints in object storage, which no shell can look into.

    A store that does not answer ends the script: a run that began again would replace its own.
    """
    return [
        f"store={shlex.quote(store)}",
        f"last={launch.steps}",
        "find_newest() {",
        '  newest=$("$jaxpipe" runs --newest "$store") || exit 1',
        "}",
    ]


def is_incomplete(launch: Launch) -> str:
    """Return the condition, without brackets, that the checkpoint of the last step is missing."""
    return '! -e "$last"' if launch.store is None else '"$newest" != "$last"'


def wait_lines(launch: Launch) -> list[str]:
    """Return the lines after `launcher &`: forward signals, wait, and set `code`."""
    return [
        "ranks=$!",
        "stopping=''",
        # USR1, not TERM: mpirun passes it on, and ends the job on TERM.
        "# The ranks save after their step, and stop.",
        "trap 'stopping=yes; kill -USR1 \"$ranks\" 2> /dev/null' TERM USR1",
        "trap 'kill -TERM \"$ranks\" 2> /dev/null' INT HUP",
        # A trapped signal ends `wait` before the ranks end.
        'while kill -0 "$ranks" 2> /dev/null; do wait "$ranks"; done',
        # Once more: bash keeps the exit code of a job that has ended.
        'wait "$ranks"',
        "code=$?",
        *verdict_lines(launch),
        'exit "$code"',
    ]


def verdict_lines(launch: Launch) -> list[str]:
    """Return lines that correct `code`: it stays 0 only if the last step was saved."""
    return [
        *([] if launch.store is None else ["find_newest"]),
        "# Exit code 0 may also mean a requested stop, or an mpirun that has lost a host.",
        f"if (( code == 0 )) && [[ {is_incomplete(launch)} ]]; then",
        f'  if [[ -n "$stopping" ]]; then code={STOPPED}; else code=1; fi',
        "fi",
    ]
