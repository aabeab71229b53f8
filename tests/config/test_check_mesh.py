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
        ({"context": 3}, {}, "twice as many do not divide `model.sequence`"),
        ({"context": 4}, {"train": {"sequence": 12}}, "do not divide `train.sequence`, 12"),
        ({"context": 2}, {"model": {"dropout": 0.1}}, "`model.dropout` is 0.1; set it to 0"),
        ({"context": 2}, {"model": {"experts": 2}}, "`model.experts` is 2; they share"),
        (
            {"context": 2},
            {"model": {"classes": 2, "tied": False}},
            "`model.classes` is 2; they",
        ),
        (
            {"context": 2},
            {"model": {"attention": "flash"}},
            "`model.attention` is flash; set",
        ),
        ({"context": 2}, {"plan": {"schedule": "zb-h1"}}, "`plan.schedule` is zb-h1; choose"),
        (
            {"tensor": 2, "sequence_parallel": True},
            {"train": {"sequence": 15}},
            "`mesh.tensor` is 2, which does not divide `train.sequence`, 15",
        ),
        ({"tensor": 2, "context": 2, "sequence_parallel": True}, {}, "not both: `sequence_par"),
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
