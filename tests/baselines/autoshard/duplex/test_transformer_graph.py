"""The graph of a transformer against the closed forms of the models."""

import pytest

from jaxpipe.baselines.autoshard.duplex import (
    CollectiveProfile,
    CostModel,
    DeviceSpeed,
    ExpertSizes,
    TransformerSizes,
    published_profiles,
    search,
    transformer_graph,
)
from jaxpipe.baselines.autoshard.duplex.moves import Moves
from jaxpipe.baselines.autoshard.duplex.relaxed import RestBounds
from jaxpipe.baselines.gpt.model_sizes import transformer_sizes
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.models.gpt_costs import head_forward_flops, layer_forward_flops, num_parameters
from jaxpipe.models.moe.mixture_costs import mixture_flops


@pytest.mark.parametrize("name", ["bert-sgmoe", "bert-switch", "vit-sgmoe", "vit-switch"])
def test_flops_and_parameters_are_those_of_the_models(name: str) -> None:
    config = GptConfig(**load_preset(name))
    graph = transformer_graph(transformer_sizes(config), batch=16)
    thirds = 3 * sum(each.flops for each in graph.operators if each.name != "embed")
    length = {"batch": 16, "sequence": config.sequence}
    mixture = mixture_flops(config, **length)
    layers = 3 * layer_forward_flops(config, **length) - 3 * mixture.forward
    layers += mixture.forward + mixture.backward
    whole = config.num_layers * layers + 3 * head_forward_flops(config, **length)
    assert thirds == pytest.approx(whole, rel=1e-12)
    operands = [
        pair for each in graph.operators for pair in zip(each.inputs, each.operands, strict=True)
    ]
    found = sum(
        graph.num_bytes(labels) / 4 for name, labels in operands if name in graph.parameters
    )
    whole = num_parameters(config, layers=config.num_layers, embed=True, head=True)
    # Norms, biases and positions are left out.
    assert found == pytest.approx(whole, rel=0.002)


def test_experts_are_split_over_slow_links() -> None:
    """Over slow links the search splits experts, as GShard does."""
    config = GptConfig(**load_preset("bert-switch"))
    graph = transformer_graph(transformer_sizes(config), batch=256)
    profile = published_profiles()["v100-8x1-9.7gbps"]
    found = search(CostModel(graph=graph, device=DeviceSpeed(flops_per_s=1e13), profile=profile))
    named = dict(zip((each.name for each in graph.operators), found.strategy, strict=True))
    assert [named[f"layer{number}.up"].signature.label for number in (1, 3, 5, 7)] == ["e"] * 4


def test_moves_are_linear_in_layers_and_the_same_for_any_number_of_devices() -> None:
    def moves(layers: int, *, devices: int) -> int:
        sizes = TransformerSizes(
            num_layers=layers,
            dim=768,
            num_heads=64,
            sequence=128,
            vocabulary=512,
            outputs=512,
            experts=ExpertSizes(num_experts=64, slots=4, mask_slots=256),
        )
        model = CostModel(
            graph=transformer_graph(sizes, batch=1024),
            device=DeviceSpeed(flops_per_s=1e13),
            profile=CollectiveProfile(devices=devices),
        )
        found = Moves(model, with_memory=False)
        RestBounds(found)
        return len(found.decisions)

    first, second, third = (moves(layers, devices=8) for layers in (4, 8, 12))
    assert second - first == third - second
    assert moves(4, devices=64) == first
