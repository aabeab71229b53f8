"""A run continues with the optimizer whose moments it has saved, or is refused by field."""

from pathlib import Path

import pytest

from jaxpipe.config.check_run import check_same_optimizer
from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.stage.optimizer_config import OptimizerName
from tests.config.test_check_order import of, saved


@pytest.mark.parametrize("name", list(OptimizerName))
def test_another_optimizer_is_refused_by_field(
    name: OptimizerName, dataset: Path, tmp_path: Path
) -> None:
    others = [other for other in OptimizerName if other is not name]
    config = of(dataset, optimizer={"name": name})
    checkpoint = saved(config, tmp_path)
    check_same_optimizer(config, checkpoint)
    for other in others:
        with pytest.raises(
            CheckpointError,
            match=rf"^`optimizer\.name` \({other}\) must be as in the .*, {name}: .*--from",
        ):
            check_same_optimizer(of(dataset, optimizer={"name": other}), checkpoint)


def test_an_import_begins_with_any_optimizer(dataset: Path, tmp_path: Path) -> None:
    checkpoint = saved(of(dataset), tmp_path, step=0)
    check_same_optimizer(of(dataset, optimizer={"name": "lion"}), checkpoint)
