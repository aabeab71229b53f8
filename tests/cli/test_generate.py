"""`jaxpipe generate` refuses what it cannot do before it imports anything slow."""

from pathlib import Path

import pytest

from jaxpipe.cli.main import main


def test_a_negative_number_of_tokens_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tmp_path), "--prompt", "a", "--tokens", "-4"]) == 2
    assert "`--tokens` must not be negative, not -4" in capsys.readouterr().err


def test_a_message_of_the_system_needs_a_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tmp_path), "--prompt", "a", "--system", "b"]) == 2
    assert "`--system` needs `--chat`" in capsys.readouterr().err
