"""`jaxpipe show`: its legend, and the memory that it checks."""

from typing import Any

import pytest

from jaxpipe.cli.main import main
from tests.cli.conftest import WriteConfig


def test_show_refuses_what_cannot_fit(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(write_config(model={"vocabulary": 10_000_000, "dim": 1024}))
    large = ("--set", "plan.cluster=case5-worldwide")
    assert main(["show", config, *large]) == 2
    shown = capsys.readouterr()
    assert "of 16 GiB" in shown.out
    assert "rank 0 needs" in shown.err
    assert "next:" not in shown.out
    # On a cluster of unknown memory it is drawn, and says so.
    assert main(["show", config]) == 0
    assert "of unknown memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"schedule": "1f1b"}, "0 forward of microbatch 0, [0] backward, . idle\n"),
        ({"schedule": "zb-h1"}, "<0> gradient of the input, (0) gradients of the weights, . idle"),
        (
            {"schedule": "interleaved-1f1b", "chunks": 2, "stages": 4},
            "[0] backward, . idle, 0.1 microbatch 0 of chunk 1",
        ),
    ],
)
def test_show_has_a_legend_of_the_marks_in_its_drawing(
    plan: dict[str, Any],
    words: str,
    write_config: WriteConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = write_config(plan=plan, model={"num_layers": 4})
    assert main(["show", str(config)]) == 0
    assert words in capsys.readouterr().out
