"""Noise: seeded, on what is measured, and never on the number of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.duplex import (
    CostModel,
    DeviceSpeed,
    TransformerSizes,
    find_profile,
    parse_profiles,
    profile_text,
    published_profiles,
    transformer_graph,
)
from jaxpipe.baselines.autoshard.duplex.noise import noisy_model
from jaxpipe.errors import PlanError

PROFILE = published_profiles()["v100-1x8"]
MODEL = CostModel(
    graph=transformer_graph(
        TransformerSizes(num_layers=1, dim=16, num_heads=4, sequence=8, vocabulary=32, outputs=32),
        batch=8,
    ),
    device=DeviceSpeed(flops_per_s=1.0),
    profile=PROFILE,
)


@given(st.floats(min_value=0.0, max_value=0.99), st.integers(min_value=0, max_value=99))
def test_noise_stays_within_its_amplitude_and_off_the_devices(amplitude: float, seed: int) -> None:
    noisy = noisy_model(MODEL, amplitude=amplitude, seed=seed)
    assert noisy.profile.devices == PROFILE.devices
    assert noisy.graph.sizes == MODEL.graph.sizes
    pairs = [(noisy.profile.all_to_all, PROFILE.all_to_all)]
    for mine, true in zip(noisy.graph.operators, MODEL.graph.operators, strict=True):
        pairs += [(mine.flops, true.flops), (mine.traffic_bytes, true.traffic_bytes)]
    for mine, true in pairs:
        assert true * (1 - amplitude) * (1 - 1e-9) <= mine <= true * (1 + amplitude) * (1 + 1e-9)
    assert noisy == noisy_model(MODEL, amplitude=amplitude, seed=seed)


def test_seeds_differ() -> None:
    assert noisy_model(MODEL, amplitude=0.5, seed=0) != noisy_model(MODEL, amplitude=0.5, seed=1)


def test_noise_of_all_is_an_error() -> None:
    with pytest.raises(PlanError, match=r"`noise` must be at least 0 and below 1, is 1\.0"):
        noisy_model(MODEL, amplitude=1.0, seed=0)


@pytest.mark.parametrize("name", published_profiles())
def test_profiles_survive_their_files(name: str) -> None:
    profile = published_profiles()[name]
    assert parse_profiles(profile_text(name, profile)) == {name: profile}


def test_an_unknown_profile_names_those_that_there_are() -> None:
    with pytest.raises(PlanError, match=r"one of .*v100-1x8.*; 'nowhere' is not"):
        find_profile("nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\ndevices = 0", "`devices` must be at least 1, is 0"),
        ("[x]\ndevices = 2\nall_reduce = -1.0", "`all_reduce` must be above 0 bytes/s"),
        ("[x]\ndevices = 2\nlatency_s = -1.0", "`latency_s` must be at least 0"),
        ("[x]\nlatency_s = 1.0", "cannot read the profiles of collectives: .*devices"),
        ("x", "cannot read the profiles of collectives"),
    ],
)
def test_wrong_profiles_are_errors(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_profiles(text)
