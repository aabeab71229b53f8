"""Settings that change nothing are named, and those that are read are not."""

from dataclasses import fields
from typing import Any

import pytest

from jaxpipe.config import config_from
from jaxpipe.config.notices import notices_of
from jaxpipe.config.unused_settings import DEPENDENCES, Dependence, unused_settings
from tests.config.chosen_settings import NOWHERE
from tests.runtime.training import tiny_tree

_OTHERS: dict[str, Any] = {
    "lora.targets": ["mlp.*"],
    "model.dispatch": "ragged",
    "model.routing_groups": 2,
    "run.project": "a project",
    "loss_scale.initial": 4.0,
    "loss_scale.largest": 2.0**20,
    "loss_scale.growth_steps": 3,
    "model.experts_per_token": 2,
    "model.normalised_gates": True,
    "outer.top_k_fraction": 0.5,
    "quorum.islands": 2,
    "quorum.every": 3,
    "quorum.discount": 0.25,
    "quorum.codec": "int8",
    "quorum.timeout_s": 4.0,
}
_CHOSEN: dict[str, dict[str, dict[str, Any]]] = {
    "`lora.rank` above 0": {"lora": {"rank": 2}},
    "`model.experts` above 0": {"model": {"experts": 4}},
    "`comm.gradients` = top_k": {"comm": {"gradients": "top_k"}},
    "`outer.codec` = top_k": {"outer": {"codec": "top_k"}},
    "`loss_scale.enabled` = true, or `model.compute_dtype` = float16": {
        "loss_scale": {"enabled": True}
    },
    "`run.trackers`": {"run": {"trackers": ["tensorboard"]}},
    "`quorum.server`": {"quorum": {"server": "merge.json"}},
    "`run.survive` = shrink": {"run": {"survive": "shrink"}},
    "`optimizer.schedule` = wsd": {"optimizer": {"schedule": "wsd"}},
    "an `optimizer.schedule` other than constant": {},
    "`optimizer.name` of adamw, lion, sgd, muon": {},
    "`optimizer.name` of adamw, lion, muon": {},
    "`optimizer.name` of adamw, muon": {},
}
_UNCHOSEN: dict[str, dict[str, dict[str, Any]]] = {
    "an `optimizer.schedule` other than constant": {"optimizer": {"schedule": "constant"}},
    "`optimizer.name` of adamw, lion, sgd, muon": {"optimizer": {"name": "adafactor"}},
    "`optimizer.name` of adamw, lion, muon": {"optimizer": {"name": "sgd"}},
    "`optimizer.name` of adamw, muon": {"optimizer": {"name": "lion"}},
}
CASES = [(row, name) for row in DEPENDENCES for name in row.fields]


def _lines(row: Dependence, name: str, chosen: dict[str, dict[str, Any]]) -> list[str]:
    field = f"{row.section}.{name}"
    sections = {**chosen, row.section: dict(chosen.get(row.section, {}))}
    if row.section == "outer":
        sections["outer"] |= {"islands": 2, "every": 2}
    sections[row.section][name] = _OTHERS.get(field, 0.5 if name != "capacity_factor" else 2.0)
    if name in ("factor", "recover_s"):
        sections[row.section][name] = 4.0
    return list(unused_settings(config_from(tiny_tree(NOWHERE, NOWHERE, **sections))))


@pytest.mark.parametrize(("row", "name"), CASES, ids=lambda part: str(part)[:40])
def test_a_setting_has_a_line_where_it_changes_nothing(row: Dependence, name: str) -> None:
    (line,) = _lines(row, name, _UNCHOSEN.get(row.needs, {}))
    assert line.startswith(f"`{row.section}.{name}` (")
    assert line.endswith(f"changes nothing: it needs {row.needs}")
    assert _lines(row, name, _CHOSEN[row.needs]) == []


@pytest.mark.parametrize("field", ["interface", "answer_s"])
def test_settings_of_hosts_change_nothing_on_one(field: str) -> None:
    config = config_from(
        tiny_tree(NOWHERE, NOWHERE, run={field: {"interface": "no0"}.get(field, 4.0)})
    )
    (line,) = notices_of(config)
    assert line.startswith(f"`run.{field}` (")
    assert line.endswith("changes nothing: it needs `jaxpipe run --hosts`")
    assert list(notices_of(config, over_hosts=True)) == []


def test_defaults_have_no_line() -> None:
    assert list(notices_of(config_from(tiny_tree(NOWHERE, NOWHERE)))) == []


def test_each_field_exists() -> None:
    config = config_from(tiny_tree(NOWHERE, NOWHERE))
    for row, name in CASES:
        assert name in {field.name for field in fields(getattr(config, row.section))}, (row, name)
