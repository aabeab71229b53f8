"""Train as one rank of a system: `python -m experiments.over_the_wire.peers.train --rank R FOLDER`.

Writes a line for each step to `steps-R.jsonl`. The clock stands still while the held-out loss is
measured. With `--first-loss` it only prints the loss of the first batch with the initial weights.
"""

# pyright: reportMissingImports=false

import argparse
import importlib
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from experiments.over_the_wire.peers.peer import Peer, Task, all_ranks, mean_loss, read_task


def main() -> None:
    """Train as one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--system", help="a module of this folder")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--first-loss", action="store_true")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    # Before anything is imported that starts processes: they inherit the core.
    os.sched_setaffinity(0, {cores[given.rank % len(cores)]})
    torch.set_num_threads(1)
    task = read_task(given.folder, rank=given.rank)
    train = torch.from_numpy(np.load(given.folder / "train.npy").astype(np.int64))
    if given.first_loss:
        print(json.dumps({"loss": mean_loss(task.whole(), train[0]), "torch": torch.__version__}))
        return
    held_out = torch.from_numpy(np.load(given.folder / "held_out.npy").astype(np.int64))
    peer = importlib.import_module(f"{__package__}.{given.system}").open_peer(task)
    run(task, peer, train, held_out)
    all_ranks(task, "done")
    peer.close()


def run(task: Task, peer: Peer, train: torch.Tensor, held_out: torch.Tensor) -> None:
    """Train all steps, and write a line for each, after an empty one."""
    all_ranks(task, "ready")
    with (task.folder / f"steps-{task.rank}.jsonl").open("w") as file:
        # Training begins: meters read from here on.
        file.write("{}\n")
        file.flush()
        for step, (samples, rate) in enumerate(
            zip(train, task.learning_rates, strict=True), start=1
        ):
            begin_s = time.perf_counter()
            loss = peer.step(samples, learning_rate=rate)
            step_s = time.perf_counter() - begin_s
            measured = peer.held_out(held_out) if step in task.eval_steps else None
            line = {"step": step, "step_s": step_s, "loss": loss, "eval_loss": measured}
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
