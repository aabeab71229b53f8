"""Step times of outer loops over slow networks: `python -m experiments.outer.paced`.

Emulated: a rank for each GPU, real messages over emulated links, computes that wait. All cases run
in one launch, one after the other; a row is written after each, and what `results/paced.csv` has
already is not run again. Takes about half an hour.
"""

import argparse
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.table import markdown, read_csv, read_values
from jaxpipe.config import Config, config_from
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import Plan
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.simulate.outer_step import outer_times

_HERE = Path(__file__).parent
TABLE = _HERE / "results" / "paced.csv"
_TIMEOUT_S = 3 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An outer loop, or sums in every step, of a plan on a network."""

    loop: str
    outer: OuterConfig | None
    cluster: str
    batch: int
    plan: Plan
    conditions: Conditions

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies its row."""
        return self.cluster, str(self.batch), self.loop

    def simulated_s(self) -> float:
        """Return the simulated seconds of a step on average."""
        if self.outer is None:
            return plan_step_s(self.plan, self.conditions)
        return outer_times(self.plan, self.conditions, self.outer).step_s(self.outer)


def main() -> None:
    """Run the cases that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-scale", type=float, default=1.5, help="real per emulated second")
    given = parser.parse_args()
    left = missing(cases())
    print(f"{len(left)} cases: emulated, paced", flush=True)
    if left:
        command = [
            *launch_command(find_mpirun(), num_ranks=max(each.plan.num_ranks for each in left)),
            *(sys.executable, "-m", "experiments.outer.paced_rank", str(given.time_scale)),
        ]
        code = subprocess.run(command, check=False, timeout=_TIMEOUT_S).returncode
        if code:
            sys.exit(f"the ranks exited with {code}; see their output above")
    print(markdown(read_values(TABLE)))


def cases() -> list[Case]:
    """Return all cases, with the networks in their order."""
    tree = tomllib.loads((_HERE / "cases.toml").read_text())["paced"]
    return [
        _case(_config(tree, network), loop, islands=network["islands"], every=tree["every"])
        for network in tree["networks"]
        for loop in tree["loops"]
    ]


def missing(all_cases: list[Case]) -> list[Case]:
    """Return the cases that the table does not have."""
    rows = read_csv(TABLE) if TABLE.exists() else []
    done = {(row["cluster"], row["batch"], row["loop"]) for row in rows}
    return [case for case in all_cases if case.key not in done]


def _config(tree: dict[str, Any], network: dict[str, Any]) -> Config:
    given = tree["config"]
    return config_from(
        {
            **given,
            "plan": given["plan"] | network["plan"],
            "train": given["train"] | {"batch": network["batch"]},
            # Nothing is written or read there: the plan and its conditions are all that is taken.
            "run": {"folder": "none"},
            "data": {"folder": "none"},
        }
    )


def _case(config: Config, loop: dict[str, Any], *, islands: int, every: int) -> Case:
    fields = {name: value for name, value in loop.items() if name != "name"}
    return Case(
        loop=loop["name"],
        outer=OuterConfig(islands=islands, every=every, **fields) if fields else None,
        cluster=str(config.plan.cluster),
        batch=config.train.batch,
        plan=plan_from(config),
        conditions=conditions_of(config),
    )


if __name__ == "__main__":
    main()
