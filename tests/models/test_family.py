"""A family is one record: unknown ones are refused, and one of another package is planned, trained.

The test of another package follows docs/how-do-i-add.md: a package with a record, a model and an
entry point, on the path of a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxpipe.models import GptConfig, build_model, family_of, num_parameters, preset_config, presets
from jaxpipe.models.catalogue import FAMILIES, family_named
from jaxpipe.models.llama_config import LlamaConfig

SIZES: dict[str, Any] = {"num_layers": 2, "dim": 8, "num_heads": 2, "sequence": 8, "vocabulary": 16}

TRAIN = """
import json, sys
from jaxpipe.config import config_from
from jaxpipe.errors import ConfigError
from jaxpipe.interchange.model_folder import exchange_of
from jaxpipe.models import num_parameters
from jaxpipe.propose.gpt_profile import gpt_profile
from jaxpipe.run.rank.threads import train
from jaxpipe.schedule.remat import Remat
from jaxpipe.runtime.metrics.records import read_metrics

tree = json.loads(sys.argv[1])
losses = {}
for stages in (1, 2):
    tree["plan"]["stages"] = stages
    tree["run"]["folder"] = f"{sys.argv[2]}/{stages}"
    config = config_from(tree)
    outcome = train(config)
    losses[stages] = [metrics.loss for metrics in read_metrics(outcome.metrics)]
profile = gpt_profile(config.model, remat=Remat.FULL, flops_per_s=1.0)
try:
    exchange_of(config.model)
    refusal = ""
except ConfigError as error:
    refusal = str(error)
print(json.dumps({
    "type": type(config.model).__name__,
    "losses": losses,
    "forward_flops": profile.layers[0].forward_s,
    "parameters": num_parameters(config.model, layers=3, embed=True, head=True),
    "refusal": refusal,
}))
"""


@dataclass(frozen=True)
class Foreign:
    """A configuration of no family, as it looks to functions of costs."""

    family: str
    num_layers: int = 1


def test_each_configuration_has_its_own_record() -> None:
    for name in presets():
        config = preset_config(name)
        assert type(config) is family_of(config).config
    assert [family.name for family in FAMILIES] == ["gpt", "llama"]
    assert all(family_named(family.name) is family for family in FAMILIES)


def num_all_parameters(config: Any) -> int:
    return num_parameters(config, layers=1, embed=True, head=True)


@pytest.mark.parametrize("use", [build_model, num_all_parameters])
def test_no_family_gets_the_formulas_of_another(use: Callable[[Any], object]) -> None:
    with pytest.raises(ValueError, match=r"`family` must be llama, .*, not 'mamba'"):
        use(Foreign("mamba"))
    with pytest.raises(ValueError, match=r"`family` 'llama' must have a `LlamaConfig`, not a `For"):
        use(Foreign("llama"))


def test_heads_are_those_that_devices_divide() -> None:
    llama = LlamaConfig(**SIZES, num_kv_heads=1, hidden=8)
    assert family_of(llama).heads == ("num_heads", "num_kv_heads")
    assert family_of(GptConfig(**SIZES)).heads == ("num_heads",)


@pytest.mark.slow
def test_a_family_of_another_package(tmp_path: Path, dataset: Path) -> None:
    packages = tmp_path / "packages"
    installed = packages / "mean_family-1.0.dist-info"
    installed.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("mean_family.py"), packages)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mean-family\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[jaxpipe_families]\nmean = mean_family:FAMILY\n")
    tree = {
        "run": {"folder": "", "seed": 1, "timeout_s": 300.0, "pictures": False},
        "data": {"folder": str(dataset)},
        "model": {"family": "mean", "num_layers": 3, "dim": 8, "sequence": 16, "vocabulary": 256},
        "plan": {"cluster": "laptop", "replicas": 1, "microbatch": 2},
        "train": {"steps": 3, "batch": 4, "eval_every": 3, "eval_batches": 1},
        "sample": {"tokens": 0},
    }
    done = subprocess.run(
        [sys.executable, "-P", "-c", TRAIN, json.dumps(tree), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["type"] == "MeanConfig"
    # The closed forms that a planner reads are the family's own.
    assert result["forward_flops"] == 4 * 16 * 8**2
    assert result["parameters"] == 3 * 2 * 8**2 + 2 * 256 * 8 + 8
    assert len(result["losses"]["2"]) == 3
    np.testing.assert_allclose(result["losses"]["2"], result["losses"]["1"], rtol=1e-6)
    assert "`model.family` must be one that `transformers` has" in result["refusal"]
