"""`jaxpipe autoshard duplex` and `jaxpipe profile --collectives` on the command line."""

import json
import subprocess
from pathlib import Path

import pytest

from jaxpipe.baselines.autoshard.duplex import find_profile
from jaxpipe.cli.main import main
from tests.helpers import mpi_command, mpi_environment

DUPLEX = ("autoshard", "duplex", "--model", "gpt-moe-tiny", "--dtype", "float32")


def test_a_strategy_is_found_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "strategy.json"
    given = ("--links", "v100-1x4", "--batch", "64", "-o", str(out), "--json")
    assert main([*DUPLEX, *given]) == 0
    answer = json.loads(capsys.readouterr().out)
    written = json.loads(out.read_text())
    assert (answer["truth"], answer["devices"]) == ("simulated", 4)
    assert written["seconds"] == pytest.approx(answer["predicted_s"])
    assert len(written["stages"]) == answer["num_stages"]
    names = [each["name"] for each in written["operators"]]
    assert (names[0], names[-1]) == ("embed", "loss")


def test_noise_is_seeded_and_never_finds_better(capsys: pytest.CaptureFixture[str]) -> None:
    def predicted(*noise: str) -> float:
        given = ("--links", "v100-8x1-9.7gbps", "--batch", "64", "--json")
        assert main([*DUPLEX, *given, *noise]) == 0
        return json.loads(capsys.readouterr().out)["predicted_s"]

    best = predicted()
    first = predicted("--noise", "0.8", "--seed", "1")
    assert first == predicted("--noise", "0.8", "--seed", "1")
    assert first >= best * (1 - 1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--links", "v100-1x4", "--batch", "6"), "`--batch` must be a multiple of 8"),
        (("--links", "nowhere", "--batch", "8"), "`--links` must be a file"),
        (("--links", "v100-1x4", "--mesh", "8"), "unrecognized options: --mesh"),
        (("--links", "v100-1x4", "--batch", "8", "--noise", "1"), "`noise` must be at least 0"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*DUPLEX, *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "`--model` must name a preset"),
        (("--collectives",), "measured between ranks, at least two"),
    ],
)
def test_a_profile_needs_a_model_or_ranks(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.mpi
def test_collectives_are_measured_between_ranks(tmp_path: Path) -> None:
    out = tmp_path / "links.toml"
    arguments = ("-m", "jaxpipe", "profile", "--collectives", "-o", str(out))
    command = mpi_command(2, *arguments, "--largest-mib", "4", "--repeats", "2")
    subprocess.run(command, check=True, env=mpi_environment(), timeout=120)
    measured = find_profile(str(out))
    assert measured.devices == 2
    assert 0 < measured.all_to_all < 1e12
