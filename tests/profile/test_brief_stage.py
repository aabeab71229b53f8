"""What a brief profile times is what a rank runs."""

from typing import Any

import pytest

from jaxpipe.models import GptConfig, build_model
from jaxpipe.profile.brief_stage import BriefStage
from jaxpipe.runtime.stage.compile import compile_stage
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Op


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_programs_are_compiled_as_those_of_a_rank(dtype: str):
    config = GptConfig(
        num_layers=4, dim=64, num_heads=2, sequence=16, vocabulary=32, compute_dtype=dtype
    )
    functions = StageFunctions(
        stage=Stage(model=build_model(config), index=1, num_stages=3, layers=range(4)),
        work=Work(microbatch=1, sequence=16, batch=1, num_steps=1, seed=0),
        optimizer=OptimizerConfig(),
    )
    rank = compile_stage(functions, ops=tuple(Op)).executables
    brief = BriefStage(functions)
    programs = {
        "forward": brief.forward,
        "backward": brief.backward,
        "backward_input": brief.input_half,
        "backward_weight": brief.weight_half,
    }
    for name, program in programs.items():
        program.compile()
        brief_bytes, rank_bytes = map(_temporary_bytes, (program.compiled, rank[name]))
        assert brief_bytes == rank_bytes, name


def _temporary_bytes(executable: Any) -> int:
    """Return the temporary memory of an executable, which the order of its instructions decides."""
    return executable.memory_analysis().temp_size_in_bytes
