"""Compile a stage of `run` for H200s in this process: JSON in, JSON out."""

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from typing import Any, Final

from jaxpipe.baselines.autoshard.hlo import CompileTarget, target_devices
from jaxpipe.models import LlamaConfig, preset_config
from jaxpipe.models.gpt_config import Attention
from jaxpipe.models.llama import Llama
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.rank_mesh import MeshConfig
from jaxpipe.runtime.stage.compile import compile_stage
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.mesh import layout_over
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Op, Remat

_NUM_LAYERS: Final = 4

_COLLECTIVE: Final = re.compile(
    r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def main() -> None:
    """Answer a request: the fields of a mesh, the tokens of a sequence, and what is recomputed."""
    request = json.loads(sys.stdin.read())
    mesh, remat = MeshConfig(**request["mesh"]), Remat(request["remat"])
    print(json.dumps(_compiled(mesh, sequence=request["sequence"], remat=remat)))


def _compiled(mesh: MeshConfig, *, sequence: int, remat: Remat) -> dict[str, Any]:
    published = preset_config("llama-3.1-8b")
    assert isinstance(published, LlamaConfig)
    model = Llama(
        replace(
            published,
            compute_dtype="bfloat16",
            sequence=max(sequence, published.sequence),
            # The fused kernel does not compile without a GPU.
            attention=Attention.PRODUCT,
        )
    )
    devices = target_devices(CompileTarget.H200, num_devices=mesh.num_devices)
    stage = Stage(
        model=model,
        index=1,
        num_stages=3,
        layers=range(_NUM_LAYERS, 2 * _NUM_LAYERS),
        remat=remat,
        loop=Loop.SCAN,
        layout=layout_over(devices, mesh, split=model.split),
    )
    work = Work(microbatch=1, sequence=sequence, batch=1, num_steps=1, seed=0)
    functions = StageFunctions(stage=stage, work=work, optimizer=OptimizerConfig())
    compiled = compile_stage(functions, ops=(Op.BACKWARD,))
    return {part: _figures(compiled.executables[part]) for part in ("forward", "backward")}


def _figures(executable: Any) -> dict[str, Any]:
    """Return the bytes of one device, and the collectives: those of a layer, and around layers."""
    memory = executable.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {
        "output_bytes": memory.output_size_in_bytes,
        "bytes": held - memory.alias_size_in_bytes + memory.temp_size_in_bytes,
        "collectives": Counter(_COLLECTIVE.findall(executable.as_text())),
    }


if __name__ == "__main__":
    main()
