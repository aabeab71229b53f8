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
# 64 V100s in four regions of North America, as DT-FM measured them, and GPT-3 XL. Who holds what,
# in which order, and how long will a step take? Nothing runs: every time here is simulated.

# %%
from pathlib import Path
from tempfile import mkdtemp

from IPython.display import Image

import topo
from jaxpipe.plan import draw_plan
from jaxpipe.propose.proposal import propose
from jaxpipe.propose.request import PlanRequest
from jaxpipe.trace import plot
from topo.draw import draw_cluster
from topo.picture import draw_picture

folder = Path(mkdtemp())
cluster = topo.load("case4-regional")
print(draw_cluster(cluster))

# %% [markdown]
# Latency and bandwidth of every pair; a row is a sender.

# %%
draw_picture(cluster, folder / "cluster.png")
Image(folder / "cluster.png")

# %% [markdown]
# A few seconds of search. `jaxpipe plan` searches for 30 by default, and writes the plan as a
# file.

# %%
request = PlanRequest(
    cluster="case4-regional", model="gpt-xl-24", batch=256, stages=8, replicas=8, budget=5.0
)
proposal = propose(request, observe=lambda count: None)
print(draw_plan(proposal.plan, proposal.cluster))

# %% [markdown]
# Where the seconds go, and what the placement is worth: the same plan on devices as they are
# listed, and on devices drawn at random.

# %%
split = proposal.split
parts = {
    "compute": split.compute_s,
    "bubble": split.bubble_s,
    "activations": split.activations_s,
    "gradients": split.gradients_s,
}
for name, seconds in parts.items():
    print(f"{name:<12} {seconds:7.3f} s {seconds / split.step_s:6.1%}")
print(f"as listed    {proposal.identity_s:7.3f} s, {proposal.identity_s / split.step_s:.2f}x")
print(f"at random    {proposal.random_median_s:7.3f} s, median of {len(proposal.random_s)}")

# %% [markdown]
# The simulated step, one band to a rank. It is a trace like that of a run.

# %%
plot(split.trace, folder / "step.png", step=0)
Image(folder / "step.png")
