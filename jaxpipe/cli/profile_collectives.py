"""`jaxpipe profile --collectives`: measure the collectives between the ranks of an `mpirun`."""

import os
import time
from pathlib import Path

from jaxpipe.baselines.autoshard.duplex import profile_text
from jaxpipe.baselines.autoshard.measure_collectives import (
    MIB,
    CollectiveSettings,
    measure_collectives,
)
from jaxpipe.comm import closing
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.errors import ConfigError
from jaxpipe.run.folder.output_files import check_output
from jaxpipe.run.terminal.console import console
from jaxpipe.runtime.process.launched_rank import rank_here

_LEAST_MIB, _MOST_MIB = 4, 256


def profile_collectives(out: Path | None, *, largest_mib: int, repeats: int) -> int:
    """Measure, and let rank 0 write the profile and print it."""
    here = rank_here(os.environ)
    if here is None or here.num_ranks < 2:
        raise ConfigError(
            "`--collectives` are measured between ranks, at least two: mpirun -n 4 jaxpipe profile "
            "--collectives -o links.toml"
        )
    if not _LEAST_MIB <= largest_mib <= _MOST_MIB:
        raise ConfigError(
            f"`--largest-mib` must be from {_LEAST_MIB} to {_MOST_MIB}, not {largest_mib}"
        )
    if here.rank == 0:  # only rank 0 writes
        check_output("--out", out)
    sizes = [mib for mib in (4, 16, 64, 256) if mib <= largest_mib]
    settings = CollectiveSettings(sizes_bytes=tuple(mib * MIB for mib in sizes), repeats=repeats)
    transport = MpiTransport()
    with closing(transport):
        measured = measure_collectives(transport, settings, clock=time.perf_counter)
    if here.rank:
        return 0
    text = profile_text("measured", measured)
    console.print(text, markup=False)
    if out is not None:
        out.write_text(f"# Bytes/s of the whole array, at up to {sizes[-1]} MiB.\n{text}")
        console.print(
            f"profile -> {out}\nnext: jaxpipe autoshard duplex --links {out}", markup=False
        )
    return 0
