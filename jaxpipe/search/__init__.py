"""Search for a plan: one loop, many generators; needs neither jax nor MPI.

- `task`, `fixed`: the cluster, the model's costs, and what a user has already decided
- `search`: the loop, and what it found, with the alternatives to each choice
- `best`: the best plan so far, which generators read
- `generators`: even plans, groups of devices, unlike replicas, schedules, changes
- `dtfm`, `layout`, `fleet`, `remaining`: placements by DT-FM's cost, layouts of unlike GPUs,
  thousands of devices, and what follows after a loss

A new generator is a function of a task and the best plan so far that yields plans;
`tests/search/test_search.py` shows what each has to keep.
"""

from jaxpipe.search.balance import balanced_cut
from jaxpipe.search.best import Best, Effort, Generator, Objective
from jaxpipe.search.build_plan import build, with_suited_trees
from jaxpipe.search.fixed import Fixed
from jaxpipe.search.generators.dtfm_plan import dtfm_plans
from jaxpipe.search.search import DEFAULT, Candidate, Found, left_out, search
from jaxpipe.search.shapes import shapes
from jaxpipe.search.sync_order import fastest_tree
from jaxpipe.search.task import Task

__all__ = [
    "DEFAULT",
    "Best",
    "Candidate",
    "Effort",
    "Fixed",
    "Found",
    "Generator",
    "Objective",
    "Task",
    "balanced_cut",
    "build",
    "dtfm_plans",
    "fastest_tree",
    "left_out",
    "search",
    "shapes",
    "with_suited_trees",
]
