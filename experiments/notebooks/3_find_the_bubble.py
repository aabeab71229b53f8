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
# # 3. Read a trace, and find the bubble
#
# A small GPT trains for a few steps on four ranks, which are threads of this process. Its trace
# says where every second of every rank went. `jaxpipe trace RUN` prints the same for a run on
# disk.

# %%
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from IPython.display import Image

import topo
from jaxpipe.comm import run_ranks
from jaxpipe.config import config_from, job_from, plan_from
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.train import train
from jaxpipe.simulate import Conditions, replay_job, simulate, with_slower_links
from jaxpipe.trace import (
    Spent,
    Trace,
    account,
    mean_account,
    mean_spent_s,
    one_step,
    plot_beside,
    read_chrome,
)

folder = Path(mkdtemp())
(folder / "text.txt").write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(2000)))
prepare(Source(path=folder / "text.txt"), folder / "data")
config = config_from(
    {
        "run": {"folder": str(folder / "run")},
        "data": {"folder": str(folder / "data")},
        "model": {"preset": "tiny", "num_layers": 2, "sequence": 64},
        "plan": {"cluster": "two-region", "stages": 2, "replicas": 2, "schedule": "gpipe"},
        "train": {"steps": 6, "batch": 16, "eval_batches": 1},
    }
)
plan = plan_from(config)
job = job_from(config, plan)
run_ranks(plan.num_ranks, lambda rank: train(job, rank, checkpoint=None, observe=lambda _: None))
measured = read_chrome(folder / "run" / "trace.json")

# %% [markdown]
# Every second of a rank goes to one thing, so rows add up. `bubble` is waiting for another rank:
# for a message that it has not sent yet, or a sum that it has not joined yet.

# %%
steps = mean_account(account(measured))
print("rank " + "".join(f"{kind:>13}" for kind in Spent))
for rank in steps.ranks:
    print(f"{rank.rank:<5}" + "".join(f"{rank.spent_s[k] / steps.seconds:13.1%}" for k in Spent))
    for other, seconds in sorted(rank.waited_s.items(), key=lambda each: -each[1])[:1]:
        print(f"     waits most for rank {other}: {seconds / steps.seconds:.1%} of the step")

# %% [markdown]
# What should the plan have taken? It is simulated with the computes that were measured, over the
# links of the plan's cluster: two regions, 11 ms apart, which the threads here did not have.

# %%
cluster = topo.load("two-region")


def simulated(scale: float) -> Trace:
    """Return the simulated step over links that are so many times slower."""
    conditions = Conditions(
        cluster=with_slower_links(cluster, scale=scale),
        profile=gpt_profile(config.model, remat=config.train.remat, flops_per_s=1.0),
        slow=np.ones(len(cluster)),
        gradient_bytes=4,
    )
    return simulate(replay_job(plan, conditions, measured))


last = max(span.step for span in measured.spans)
plot_beside(
    (one_step(measured, step=last), one_step(simulated(1.0), step=0, called=last)),
    folder / "both.png",
    step=last,
)
Image(folder / "both.png")

# %% [markdown]
# And if the links were slower? The bubble stays what the schedule makes it; what grows are
# messages that nothing hides.

# %%
for scale in (1.0, 4.0, 16.0):
    step = account(simulated(scale))[0]
    shares = {kind.value: f"{s / step.seconds:.0%}" for kind, s in mean_spent_s(step).items()}
    print(f"{scale:4.0f} x: {step.seconds:.3f} s", shares)
