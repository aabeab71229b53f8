# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 5. Run MPI ranks from a cell
#
# A rank talks to a `Transport`: it sends, it receives, and every wait has a deadline. What is
# written for one transport runs over any other. So a program of several ranks can be looked into
# from a notebook, as threads of this process, and then run as processes of MPI.

# %%
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxpipe
from jaxpipe.comm import Transport
from jaxpipe.pictures.palette import SERIES
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command


def pass_on(transport: Transport) -> float:
    """Send a number around all ranks, each of which adds its own; return what comes back."""
    like = jax.ShapeDtypeStruct((1,), np.dtype(np.float32))
    before = (transport.rank - 1) % transport.num_ranks
    after = (transport.rank + 1) % transport.num_ranks
    receiving = transport.receive(like, source=before, tag=0)
    total = np.zeros(1, np.float32)
    if transport.rank > 0:
        total = np.asarray(receiving.wait(timeout_s=10.0))
    sending = transport.send(total + transport.rank, to=after, tag=0)
    if transport.rank == 0:
        total = np.asarray(receiving.wait(timeout_s=10.0))
    sending.wait(timeout_s=10.0)
    return float(total[0])


jaxpipe.run_ranks(4, pass_on)

# %% [markdown]
# Each rank returns what it has seen: rank 0 the sum of all, the others the sum so far.
#
# ## Now as processes
#
# A notebook is one process, so ranks of MPI are started from it, with a program in a file. Here
# two of them play ping-pong with messages of growing size; `MpiTransport` is the process that it is
# made in, as one of the ranks.

# %%
scratch = TemporaryDirectory()
program = Path(scratch.name) / "ping_pong.py"
program.write_text('''
import json
import time

import jax
import numpy as np


def one_way(transport, size: int, repeats: int = 20) -> float:
    """Return the median seconds of a message of so many bytes between ranks 0 and 1."""
    like = jax.ShapeDtypeStruct((size,), np.dtype(np.uint8))
    array, taken = np.zeros(size, np.uint8), []
    for _ in range(repeats):
        start = time.perf_counter()
        receiving = transport.receive(like, source=1 - transport.rank, tag=0)
        if transport.rank == 1:
            receiving.wait(timeout_s=10.0)
        sending = transport.send(array, to=1 - transport.rank, tag=0)
        if transport.rank == 0:
            receiving.wait(timeout_s=10.0)
        sending.wait(timeout_s=10.0)
        taken.append((time.perf_counter() - start) / 2)
    return sorted(taken)[repeats // 2]


def all_sizes(transport) -> dict[int, float]:
    """Return the seconds of messages from 1 KiB to 4 MiB."""
    return {4**power: one_way(transport, 4**power) for power in range(5, 12)}


if __name__ == "__main__":
    from jaxpipe.comm.mpi.mpi_transport import MpiTransport

    transport = MpiTransport()
    seconds = all_sizes(transport)
    if transport.rank == 0:
        print(json.dumps(seconds), flush=True)
    transport.close()
''')
command = (*launch_command(find_mpirun(), num_ranks=2), sys.executable, str(program))
print(*command[:-2], "python ping_pong.py")
ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
processes = {int(size): seconds for size, seconds in json.loads(ran.stdout).items()}

# %% [markdown]
# The same functions over threads: the file is a module like any other.

# %%
sys.path.insert(0, scratch.name)
import ping_pong

threads = jaxpipe.run_ranks(2, ping_pong.all_sizes)[0]
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
for (name, seconds), color in zip(
    (("threads", threads), ("processes of MPI", processes)), SERIES, strict=False
):
    times_us = [1e6 * each for each in seconds.values()]
    axes.loglog(list(seconds), times_us, "o-", label=name, color=color)
axes.yaxis.set_major_formatter("{x:g}")
axes.set_xlabel("bytes of a message")
axes.set_ylabel("microseconds, one way")
axes.legend()
axes.grid(alpha=0.3)

# %% [markdown]
# The flat part is latency, the slope is bandwidth: that is all that the planner wants to know of a
# link, and `jaxpipe topo probe` measures it between all ranks of a job.
#
# ## Is this machine fit for it?
#
# The doctor looks at MPI, ranks, cores, devices, versions and links, and says how to mend what is
# not well.

# %%
from jaxpipe.doctor import say_hello

for finding in say_hello(timeout_s=40.0):
    print(f"{finding.health.value:<8}{finding.about:<10}{finding.message}")

# %% [markdown]
# ## Next
#
# - `jaxpipe train CONFIG` starts its ranks by itself; `mpirun -n 4 jaxpipe train CONFIG` makes it
#   one of four.
# - `jaxpipe launch CONFIG --target slurm` writes the script for a cluster.
# - [6. Bring your own model](6_bring_your_own_model.ipynb) exchanges what the ranks compute.
