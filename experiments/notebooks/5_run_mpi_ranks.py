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
# The same code runs over any transport. First as threads of this process, which is how to look
# into it from a notebook; then as processes of MPI.

# %%
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import jax
import numpy as np

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.runtime.launch import find_mpirun, launch_command


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


run_ranks(4, pass_on)

# %% [markdown]
# A notebook is one process, so ranks of MPI are started from it. `MpiTransport` is this process
# as one of them; every wait has a deadline, and an error of one rank ends them all.

# %%
program = Path(mkdtemp()) / "rank.py"
program.write_text("""
from jaxpipe.comm import barrier
from jaxpipe.comm.mpi import MpiTransport

transport = MpiTransport()
barrier(transport, tag=0, timeout_s=10.0)
print(f"rank {transport.rank} of {transport.num_ranks}", flush=True)
transport.close()
""")
command = (*launch_command(find_mpirun(), num_ranks=2), sys.executable, str(program))
ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
print("\n".join(sorted(ran.stdout.splitlines())))

# %% [markdown]
# Is this machine fit for it? The doctor says.

# %%
from jaxpipe.doctor import say_hello

for finding in say_hello(timeout_s=40.0):
    print(f"{finding.health.value:<8}{finding.about:<10}{finding.words}")
