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
# # 2. Plan a cluster, and look at it
#
# 64 V100s in four regions of North America, as DT-FM measured them, and GPT-3 XL. Between some of
# them lie 67 ms and 1 Gbps. Who holds what, in which order does each compute, and how long will
# a step take?
#
# Nothing runs here: every time is simulated, and no GPU is needed.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
from IPython.display import Image

import jaxpipe
from jaxpipe.pictures.cluster_picture import draw_picture
from jaxpipe.pictures.palette import BLUE, PARTS
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.proposal import propose
from jaxpipe.trace import plot
from jaxpipe.topo.draw_cluster import draw_cluster

scratch = TemporaryDirectory()
folder = Path(scratch.name)
cluster = jaxpipe.load_cluster("case4-regional")
print(draw_cluster(cluster))

# %% [markdown]
# Latency and bandwidth of every pair; a row is a sender. The squares along the diagonal are
# regions, and a good plan keeps what is heavy inside of them.

# %%
draw_picture(cluster, folder / "cluster.png")
Image(folder / "cluster.png")

# %% [markdown]
# ## The search
#
# What `[plan]` leaves open is searched, for three seconds; `jaxpipe plan` takes 30 for as many
# devices. What is made small is the simulated time of a step, not a stand-in for it.

# %%
config = jaxpipe.config_from(
    {
        "run": {"folder": "runs/planned"},
        "data": {"folder": "data/text"},
        "model": {"preset": "gpt-xl-24"},
        "plan": {"cluster": "case4-regional", "stages": 8, "replicas": 8},
        "train": {"batch": 256, "remat": "full"},
    }
)
proposal = propose(config, SearchOptions(budget=3.0))
print(jaxpipe.draw_plan(proposal.plan, proposal.cluster))

# %% [markdown]
# ## Where the seconds go, and what the placement is worth
#
# On the left the parts of a step. On the right the same plan on devices as they are listed, and on
# devices drawn at random.

# %%
split = proposal.split
parts = {
    "compute": split.compute_s,
    "bubble": split.bubble_s,
    "activations": split.activations_s,
    "gradients": split.gradients_s,
}
placed = {
    "planned": split.step_s,
    "as listed": proposal.identity_s,
    "at random": proposal.random_median_s,
}
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 2.6), layout="constrained")
for axes, bars, title in (
    (left, parts, "seconds of a step"),
    (right, placed, "seconds of a step, by placement"),
):
    drawn = axes.barh(
        list(bars), list(bars.values()), color=[PARTS.get(name, BLUE) for name in bars]
    )
    axes.bar_label(drawn, fmt="%.1f", padding=3)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_title(title)

# %% [markdown]
# ## The step itself
#
# One band to a rank; what is white is the bubble. It is a trace like that of a run, so whatever
# reads the one reads the other.

# %%
plot(split.trace, folder / "step.png", step=1)
Image(folder / "step.png")

# %% [markdown]
# ## Next
#
# - `jaxpipe plan --cluster case4-regional --model gpt-xl-24 --batch 256` writes `plan.toml`, and
#   `[plan] file = "plan.toml"` makes `jaxpipe train` run it.
# - `jaxpipe topo list` names the clusters that are known; `mpirun ... jaxpipe topo probe -o FILE`
#   measures yours.
# - [3. Find the bubble](3_find_the_bubble.ipynb) looks at a step that was really run.
