"""The same stages and training steps on one device by PyTorch.

    python torch_gpu.py FOLDER

It needs nothing but PyTorch, and runs in an environment of its own. FOLDER has `task.json`;
`result.json` is written there. Stages have parameters and gradients in bfloat16; a training step
keeps them in float32 and casts (`autocast`), with AdamW in its fused form. Attention is
`scaled_dot_product_attention`. With `compiled`, `torch.compile` compiles the model.
"""

# pyright: reportMissingImports=false

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch_pipeline import Stage, adamw, loss_of

_WARMUP = 3


def parts(task: dict[str, Any], device: str) -> list[dict[str, Any]]:
    """Return the seconds of forward and backward of a stage for each microbatch."""
    return [_part(task, device, microbatch) for microbatch in task["microbatches"]]


def _part(task: dict[str, Any], device: str, microbatch: int) -> dict[str, Any]:
    model, layers = task["model"], task["layers"]
    whole = layers == model["num_layers"]
    stage = Stage(model, range(layers) if whole else range(1, 1 + layers))
    stage = stage.to(device, torch.bfloat16)
    function = torch.compile(stage) if task["compiled"] else stage
    shape = (microbatch, model["sequence"])
    if whole:
        x = targets = torch.randint(model["vocabulary"], shape, device=device)
    else:
        # A stage in the middle also returns the gradient of its input.
        x = torch.randn(*shape, model["dim"], device=device, dtype=torch.bfloat16)
        x.requires_grad_()
        targets = None

    def forward() -> Tensor:
        output = function(x)
        return output if targets is None else loss_of(output.float(), targets)

    forward_s, backward_s, call_s = [], [], []
    for _ in range(_WARMUP + task["count"]):
        seconds, until_return_s, output = timed(forward, device)
        forward_s.append(seconds)
        call_s.append(until_return_s)
        backward = partial(output.backward, None if whole else output.detach())
        backward_s.append(timed(backward, device)[0])
    return {
        "microbatch": microbatch,
        "forward_s": median(forward_s[_WARMUP:]),
        "backward_s": median(backward_s[_WARMUP:]),
        # No such time of the backward: autograd's own threads launch its kernels.
        "forward_call_s": median(call_s[_WARMUP:]),
    }


def steps(task: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the seconds of training steps, gradients accumulated over microbatches of one."""
    model = task["model"]
    stage = Stage(model, range(model["num_layers"])).to(device)
    function = torch.compile(stage) if task["compiled"] else stage
    optimizer, step_s = adamw(stage), []

    def step(tokens: Tensor) -> None:
        optimizer.zero_grad()
        for sample in tokens.split(1):
            with torch.autocast(device, torch.bfloat16):
                logits = function(sample[:, :-1])
            (loss_of(logits.float(), sample[:, 1:]) / len(tokens)).backward()
        torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
        optimizer.step()

    for _ in range(task["steps"]):
        shape = (task["batch"], model["sequence"] + 1)
        tokens = torch.randint(model["vocabulary"], shape, device=device)
        step_s.append(timed(partial(step, tokens), device)[0])
    is_cuda = device == "cuda"
    peak_bytes = torch.cuda.max_memory_allocated() if is_cuda else None
    return {"step_s": step_s, "peak_bytes": peak_bytes}


def timed(call: Callable[[], Any], device: str) -> tuple[float, float, Any]:
    """Return the seconds until a result is ready, those until its call returns, and the result."""
    wait = torch.cuda.synchronize if device == "cuda" else _nothing
    wait()
    begin_s = time.perf_counter()
    result = call()
    until_return_s = time.perf_counter() - begin_s
    wait()
    return time.perf_counter() - begin_s, until_return_s, result


def _nothing() -> None:
    """Wait for a CPU, which has finished."""


def main(folder: Path) -> None:
    """Measure what the task in the folder asks for."""
    task = json.loads((folder / "task.json").read_text())
    device = "cuda" if task["needs_gpu"] else "cpu"
    is_steps = task["measures"] == "steps"
    result = steps(task, device) if is_steps else {"rows": parts(task, device)}
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
