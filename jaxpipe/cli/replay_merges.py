"""`jaxpipe replay`: trains islands again as a merge server has logged it, and compares the bits."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.runtime.process.compile_cache import use_compile_cache


def replay(
    server: tyro.conf.Positional[Path],
    islands: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="ISLAND ...")]],
    *,
    start: Annotated[Path | None, tyro.conf.arg(name="from", metavar="FOLDER")] = None,
) -> int:
    """Train islands again from the log of their merge server, and compare all merges bit for bit.

    The islands train as threads of this process, from the same anchors, as many inner steps, and
    with the same moments where one was killed and came back; their folders stay as they are. The
    exit code is 1 if a merge differs, and the verdict names the first one.

    Args:
        server: the folder of `jaxpipe merge`, for its `merges.jsonl`.
        islands: the folders of the islands' runs, for their configurations and plans.
        start: what the islands have begun with, if that was `jaxpipe train --from`.
    """
    from jaxpipe.runtime.process.jax_backend import check_platforms  # it loads clusters

    check_platforms(os.environ)
    use_compile_cache(os.environ)

    # It imports jax, which then uses the cache.
    from jaxpipe.run.quorum.replay_folders import replay_folders
    from jaxpipe.run.terminal.console import console

    replayed = replay_folders(
        server, islands, source=start, say=lambda line: console.print(line, markup=False)
    )
    if replayed.difference:
        console.print(
            f"NOT the run of the log: {replayed.difference}; {replayed.num_merges} merges before "
            "are equal",
            markup=False,
        )
        return 1
    console.print(
        f"the run of the log, bit for bit: {replayed.num_merges} merges are equal", markup=False
    )
    return 0
