"""`jaxpipe show`: the placement, the cut and the schedule of a configuration, without a run."""

from pathlib import Path
from typing import Annotated

import tyro


def show(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
) -> int:
    """Draw the plan of a run: who holds what, in what order it computes, how gradients travel.

    Args:
        config: a TOML file.
        settings: changes to it, such as `train.steps=10`; give it once for each.
    """
    import topo
    from jaxpipe.config import load_config, plan_from
    from jaxpipe.plan import draw_plan
    from jaxpipe.run.console import console

    read = load_config(config, settings)
    plan = plan_from(read)
    console.print(draw_plan(plan, topo.load(read.plan.cluster)), markup=False)
    console.print(f"\nnext: jaxpipe train {config}", markup=False)
    return 0
