"""Plans with bottlenecks are certified, and tokens of another sample are found."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.runtime.step import step_batch
from jaxpipe.verify.certificate import Reference, compared, reference
from jaxpipe.verify.differences import Subject
from jaxpipe.verify.stand_in import DataForm
from tests.config.chosen_settings import Example, checked

pytestmark = pytest.mark.slow

FORM = DataForm(masked=(True,), labelled=False, packed=False, weights=(1.0,))


def expected_of(**sections: dict[str, Any]) -> Reference:
    model = {"bottlenecks": [[1, 4], [2, 2]], **sections.pop("model", {})}
    return reference(*checked(Example({"model": model, **sections})), FORM)


@pytest.mark.parametrize(
    "sections",
    [
        {"plan": {"stages": 3, "replicas": 1, "schedule": "zb-h1"}, "comm": {"boundary": "int8"}},
        {"plan": {"cut": [1, 2]}, "model": {"dropout": 0.1}, "comm": {"gradients": "int8"}},
        {"plan": {"cut": [2, 1]}, "optimizer": {"sharded": True}, "model": {"experts": 2}},
    ],
    ids=["each layer alone, int8", "dropout", "sharded optimizer, experts"],
)
def test_ranks_compute_what_one_device_does(sections: dict[str, Any]):
    certificate = compared(expected_of(**sections), compiler=CompileOnce())
    assert certificate.is_proved, "\n".join(certificate.lines())


def test_tokens_of_another_sample_are_found():
    parts = step_batch.SampleParts

    def shifted(*, tokens: Any, **others: Any) -> Any:
        return parts(tokens=None if tokens is None else np.roll(tokens, 1, axis=1), **others)

    expected = expected_of(plan={"stages": 3, "replicas": 1})
    with patch.object(step_batch, "SampleParts", shifted):
        certificate = compared(expected, compiler=CompileOnce())
    assert not certificate.is_proved
    wrong = {difference.subject for difference in certificate.wrong}
    assert Subject.ACTIVATIONS in wrong
