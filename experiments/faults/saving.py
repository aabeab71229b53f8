"""Overhead of asynchronous checkpointing: `python -m experiments.faults.saving [--rounds N]`."""

import argparse
import os
import tomllib
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from experiments.faults.saving_blocks import Block, Task
from experiments.table import markdown, write_csv
from jaxpipe.chaos.harness.tiny_run import write_dataset
from jaxpipe.config import config_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.process.mpirun import launch

INTERVALS = (1, 5, 20, 50)
HERE = Path(__file__).parent


def rows(blocks: list[Block]) -> list[dict[str, str]]:
    """Return a row per interval: median step times, and quartiles of the per-round ratios."""
    table = []
    for interval in dict.fromkeys(block.interval for block in blocks):
        of = [block for block in blocks if block.interval == interval]
        without = [block.seconds / interval for block in of if not block.is_saved]
        saved = [block.seconds / interval for block in of if block.is_saved]
        ratios = sorted(b / a for a, b in zip(without, saved, strict=True))
        table.append(
            {
                "interval": str(interval),
                "step_s": f"{median(without):.4f}",
                "step_with_save_s": f"{median(saved):.4f}",
                "ratio": f"{median(ratios):.4f}",
                "ratio_lower_quarter": f"{ratios[len(ratios) // 4]:.4f}",
                "ratio_upper_quarter": f"{ratios[-1 - len(ratios) // 4]:.4f}",
                "copy_s": f"{median(block.copy_s for block in of if block.is_saved):.4f}",
                "rounds": str(len(ratios)),
            }
        )
    return table


def measure(rounds: int) -> list[Block]:
    """Train on ranks of this host, and return the blocks that rank 0 measured."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        config = tomllib.loads((HERE / "saving.toml").read_text())
        config["run"]["folder"] = str(folder / "run")
        config["data"]["folder"] = str(write_dataset(folder))
        task = Task(config=config, intervals=INTERVALS, rounds=rounds, out=str(folder / "out.json"))
        num_ranks = plan_from(config_from(config)).num_ranks
        arguments = [msgspec.json.encode(task).decode()]
        # Ranks do not search the working directory, and experiments are not installed.
        os.environ["PYTHONPATH"] = str(HERE.parents[1])
        code = launch(arguments, num_ranks=num_ranks, module="experiments.faults.saving_rank")
        assert code == 0, code
        return msgspec.json.decode(Path(task.out).read_bytes(), type=list[Block])


def main() -> None:
    """Measure, print the table, and store it as `results/saving/steps.csv`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    table = rows(measure(parser.parse_args().rounds))
    out = HERE / "results" / "saving" / "steps.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(table, out)
    print(markdown(table))


if __name__ == "__main__":
    main()
