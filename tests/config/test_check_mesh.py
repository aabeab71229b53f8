"""What the devices of a rank share has to be there to share; errors name the field."""

from typing import Any

import pytest

from jaxpipe.config import config_from
from jaxpipe.errors import ConfigError
from jaxpipe.propose.resolve import plan_from

LEAST: dict[str, Any] = {
    "run": {"folder": "runs/a"},
    "data": {"folder": "data/a"},
    "model": {"preset": "tiny", "dropout": 0.0},
    "plan": {"cluster": "laptop", "stages": 2, "replicas": 2, "microbatch": 1, "schedule": "1f1b"},
}


@pytest.mark.parametrize(
    ("mesh", "sections", "words"),
    [
        ({"context": 3}, {}, "must be a multiple of 2 x `mesh.context` (6)"),
        (
            {"context": 4},
            {"train": {"sequence": 12}},
            "`train.sequence` (12) must be",
        ),
        (
            {"tensor": 2, "sequence_parallel": True},
            {"train": {"sequence": 15}},
            "`mesh.tensor` (2) must divide `train.sequence` (15)",
        ),
        ({"sharded": True}, {}, "the axes `data` and `context`, which are 1"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    mesh: dict[str, Any], sections: dict[str, dict[str, Any]], words: str
) -> None:
    tree = {
        name: {**LEAST.get(name, {}), **sections.get(name, {})} for name in {**LEAST, **sections}
    }
    with pytest.raises(ConfigError) as found:
        plan_from(config_from({**tree, "mesh": mesh}))
    assert words in str(found.value)


@pytest.mark.parametrize(
    "mesh",
    [
        {"context": 4},
        {"data": 2, "context": 2, "tensor": 2, "sharded": True},
        {"tensor": 2, "sequence_parallel": True},
    ],
)
def test_what_fits_is_planned(mesh: dict[str, Any]) -> None:
    config = config_from({**LEAST, "plan": {**LEAST["plan"], "microbatch": 2}, "mesh": mesh})
    assert plan_from(config).num_ranks == 4
