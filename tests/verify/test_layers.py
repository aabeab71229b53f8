"""Plans whose stages have unlike layers, or adapters on experts, are certified."""

from dataclasses import asdict
from typing import Any

import pytest

from jaxpipe.config import config_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.verify.certificate import compared, reference
from jaxpipe.verify.stand_in import DataForm
from tests.config.chosen_settings import NOWHERE
from tests.oracles.llamas import GEMMA3_RAGGED, MIXTRAL
from tests.runtime.training import tiny_tree

pytestmark = pytest.mark.slow

FORM = DataForm(masked=(True,), labelled=False, packed=False, weights=(1.0,))
MODEL = {
    **asdict(GEMMA3_RAGGED),
    "num_layers": 3,
    "full_layers": [1],
    "sequence": 16,
    "vocabulary": 256,
}


@pytest.mark.parametrize(
    "sections",
    [
        {"plan": {"cuts": [[1, 2], [2, 1]]}, "train": {"loop": "unrolled"}},
        {"plan": {"cut": [1, 2], "schedule": "zb-h1"}, "lora": {"rank": 2}},
        {"model": {"alternating": True, "period": 2, "num_layers": 2, "full_layers": []}},
    ],
    ids=["unequal cuts", "split backward, adapters", "groups"],
)
def test_ranks_compute_what_one_device_does(sections: dict[str, Any]):
    model = {**MODEL, **sections.pop("model", {})}
    tree = tiny_tree(NOWHERE, NOWHERE, **sections) | {"model": model}
    config = config_from(tree)
    plan = plan_from(config)
    certificate = compared(reference(config, plan, FORM), compiler=CompileOnce())
    assert certificate.is_proved, "\n".join(certificate.lines())


def test_ranks_train_adapters_of_experts_as_one_device_does():
    model = {**asdict(MIXTRAL), "sequence": 16, "vocabulary": 256}
    lora = {"rank": 2, "targets": ["moe.*"]}
    tree = tiny_tree(NOWHERE, NOWHERE, lora=lora) | {"model": model}
    config = config_from(tree)
    certificate = compared(reference(config, plan_from(config), FORM), compiler=CompileOnce())
    assert certificate.is_proved, "\n".join(certificate.lines())
