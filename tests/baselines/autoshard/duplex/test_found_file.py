"""The file of a found strategy gives the same strategy again, and damage is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.baselines.autoshard.duplex import (
    CostModel,
    DeviceSpeed,
    LabelledGraph,
    TransformerSizes,
    find_profile,
    search,
    step_s,
    transformer_graph,
)
from jaxpipe.baselines.autoshard.duplex.describe import strategy_json
from jaxpipe.baselines.autoshard.duplex.found_file import decisions_for, is_found_file, read_found
from jaxpipe.baselines.gpt.model_sizes import transformer_sizes
from jaxpipe.errors import PlanError
from jaxpipe.models import GptConfig, load_preset


def sizes() -> TransformerSizes:
    return transformer_sizes(GptConfig(**load_preset("gpt-moe-tiny")))


def model(links: str = "v100-8x1-9.7gbps", *, batch: int = 64) -> CostModel:
    graph = transformer_graph(sizes(), batch=batch)
    # Slow products, so that collectives are worth their time.
    return CostModel(graph=graph, device=DeviceSpeed(flops_per_s=1e10), profile=find_profile(links))


@pytest.mark.parametrize("links", ["v100-8x1-9.7gbps", "v100-1x8"])
def test_a_strategy_survives_its_file(links: str, tmp_path: Path) -> None:
    costs = model(links)
    found = search(costs)
    path = tmp_path / "found.json"
    path.write_text(strategy_json(costs, found))
    assert is_found_file(path.read_bytes())
    again = decisions_for(costs.graph, read_found(path))
    assert step_s(costs, again) == pytest.approx(found.seconds, rel=1e-12)
    assert [each.placements for each in again] == [each.placements for each in found.strategy]
    assert [each.conversions for each in again] == [each.conversions for each in found.strategy]


def changed(tmp_path: Path, **changes: Any) -> tuple[LabelledGraph, Path]:
    costs = model()
    tree = json.loads(strategy_json(costs, search(costs)))
    operator = changes.pop("operator", {})
    tree["operators"][1].update(operator)
    path = tmp_path / "found.json"
    path.write_text(json.dumps({**tree, **changes}))
    return costs.graph, path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "must have `format` 1"),
        ({"devices": 0}, "and a device"),
        ({"operators": []}, "the strategy has 0 operators, the model"),
        ({"operator": {"name": "layer0.abacus"}}, "first that differs is 'layer0.abacus'"),
        ({"operator": {"forms": "S9,F->S9"}}, "cannot have the `forms` 'S9,F->S9'"),
        ({"operator": {"parameters": {}}}, "cannot be stored so"),
        ({"operator": {"converted": {"abacus": "F->S0"}}}, "does not read 'abacus'"),
        ({"operator": {"converted": {"embed": "F->Sx"}}}, "the form 'Sx': .*; search again"),
    ],
)
def test_damage_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    graph, path = changed(tmp_path, **changes)
    with pytest.raises(PlanError, match=words):
        decisions_for(graph, read_found(path))


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    assert not is_found_file(b'{"format": 1, "name": "found"}')
    with pytest.raises(PlanError, match="cannot read the strategy"):
        read_found(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{}")
    with pytest.raises(PlanError, match="is no strategy of `jaxpipe autoshard duplex`"):
        read_found(tmp_path / "text.json")
