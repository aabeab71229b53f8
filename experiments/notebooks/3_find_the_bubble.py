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
# Why is my run slow? A pipeline has four answers: ranks compute, they wait for messages that are
# under way, they wait for all-reduces of gradients, or they wait for each other. Each
# has another cure, so the first thing to know is how much there is of each.
#
# A small GPT trains for a few steps on four ranks, which are threads of this process, and its trace
# is taken apart.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image

import jaxpipe
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.schedule import render
from jaxpipe.pictures.palette import PARTS
from jaxpipe.trace import Spent, account, mean_account, mean_spent_s, one_step, plot_beside
from jaxpipe.topo import with_slower_links

scratch = TemporaryDirectory()
folder = Path(scratch.name)
(folder / "text.txt").write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(2000)))
prepare(Source(path=folder / "text.txt"), folder / "data")
config = jaxpipe.config_from(
    {
        "run": {"folder": str(folder / "run")},
        "data": {"folder": str(folder / "data")},
        "model": {"preset": "tiny", "num_layers": 2, "sequence": 64},
        "plan": {
            "cluster": "two-region",
            "stages": 2,
            "replicas": 2,
            "microbatch": 1,
            "schedule": "gpipe",
        },
        "train": {"steps": 6, "batch": 16, "eval_batches": 1},
    }
)
plan = jaxpipe.plan_from(config)
print(render(plan.compute_schedule()))

# %% [markdown]
# That is the order: a row to a stage, a column to a unit of time, backwards in brackets. The dots
# in the middle are the bubble that this schedule always has. And now for real.

# %%
outcome = jaxpipe.train(config)
measured = jaxpipe.read_chrome(outcome.trace)
print(f"{len(measured.spans)} spans, {measured.truth}")

# %% [markdown]
# ## Where every second went
#
# Every second of a rank goes to one thing, so rows add up. `waiting` is for another rank:
# for a message that it has not sent yet, or a sum that it has not joined yet.

# %%
steps = mean_account(account(measured))
print("rank " + "".join(f"{kind:>13}" for kind in Spent) + "   waits most for")
for rank in steps.ranks:
    shares = "".join(f"{rank.spent_s[kind] / steps.seconds:13.1%}" for kind in Spent)
    other, waited_s = max(rank.waited_s.items(), key=lambda each: each[1], default=(None, 0.0))
    whom = "nobody" if other is None else f"rank {other}, {waited_s / steps.seconds:.1%}"
    print(f"{rank.rank:<5}{shares}   {whom}")

# %% [markdown]
# ## What the plan foresaw
#
# The plan is simulated with the computes that were measured, over the links of its cluster: two
# regions, 11 ms apart, which the threads here did not have. Above is the run, below the plan. What
# differs is not compute.

# %%
cluster = jaxpipe.load_cluster("two-region")


def simulated(scale: float) -> jaxpipe.Trace:
    """Return the simulated step over links that are `scale` times slower."""
    slower = with_slower_links(cluster, scale=scale)
    return jaxpipe.simulate_step(config, measured=measured, cluster=slower)


last = max(span.step for span in measured.spans)
plot_beside(
    (one_step(measured, step=last), one_step(simulated(1.0), step=1, called=last)),
    folder / "both.png",
    step=last,
)
Image(folder / "both.png")

# %% [markdown]
# ## And if the links were slower?
#
# Waiting stays about what the schedule makes it; what grows are messages that nothing hides.

# %%
scales = (0.25, 1.0, 4.0, 16.0)
accounts = [account(simulated(scale))[0] for scale in scales]
figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
bottom = np.zeros(len(scales))
for kind in Spent:
    seconds = np.array([mean_spent_s(step)[kind] for step in accounts])
    axes.bar(
        [f"{scale:g} x" for scale in scales], seconds, bottom=bottom, label=kind, color=PARTS[kind]
    )
    bottom += seconds
figure.legend(loc="outside right center", fontsize="small", frameon=False)  # not over the bars
axes.set_xlabel("latency and seconds per byte, of those of the cluster")
axes.set_ylabel("seconds of a step")
axes.grid(axis="y", alpha=0.3)

# %% [markdown]
# ## Next
#
# - `jaxpipe trace RUN` prints the same for a run on disk; `--png` draws both, `-o` writes both for
#   ui.perfetto.dev.
# - Another schedule has another bubble: try `"schedule": "1f1b"` or `"zb-h1"` above.
# - [4. Compare with Alpa-style sharding](4_compare_with_alpa.ipynb) asks whether a pipeline is the
#   way to go at all.
