"""`jaxpipe evaluate`: the perplexity of a run's model on held-out data."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from jaxpipe.errors import ConfigError
from jaxpipe.run.terminal.console import console
from jaxpipe.runtime.process.compile_cache import use_compile_cache


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FOLDER")] = (),
    windows: int | None = None,
) -> int:
    """Measure the perplexity of the newest checkpoint of a run on held-out data.

    The model is computed on one device, with its adapters merged, if it has some.

    Args:
        run: the folder of a run.
        data: a prepared dataset, a folder or a URL, with the tokenizer of the run; may be repeated;
            by default those of the run.
        windows: the most windows of each dataset, the first ones; by default all.
    """
    if windows is not None and windows < 1:
        raise ConfigError(f"`--windows` must be at least 1, not {windows}")
    from jaxpipe.runtime.process.jax_backend import check_platforms  # it loads clusters

    check_platforms(os.environ)
    use_compile_cache(os.environ)

    # They import jax, which then uses the cache.
    from jaxpipe.config import place_in, saved_config
    from jaxpipe.inference.held_out_losses import held_out_losses
    from jaxpipe.runtime.checkpoint import latest, open_checkpoint
    from jaxpipe.runtime.data import dataset_folder

    checkpoint = open_checkpoint(latest(place_in(run)))
    folders = tuple(map(dataset_folder, data or saved_config(checkpoint).data.folders))
    console.print(f"step {checkpoint.step} of {run}, held-out parts, measured\n", markup=False)
    for losses in held_out_losses(checkpoint, folders, most_windows=windows):
        console.print(
            f"{losses.loss:8.4f} nats per token   perplexity {losses.perplexity:10,.2f}   "
            f"{losses.num_targets:>12,} tokens   {losses.folder}",
            markup=False,
        )
    return 0
