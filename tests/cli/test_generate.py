"""`jaxpipe generate` refuses what it cannot do before it imports anything slow."""

from pathlib import Path

import pytest

from jaxpipe.cli.main import main


def test_a_negative_number_of_tokens_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tmp_path), "--prompt", "a", "--tokens", "-4"]) == 2
    assert "`--tokens` must be from 0 to 1,000,000,000, not -4" in capsys.readouterr().err


def test_a_message_of_the_system_needs_a_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tmp_path), "--prompt", "a", "--system", "b"]) == 2
    assert "`--system` needs `--chat`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--messages", "a.json"], "`--messages` needs `--chat`"),
        (["--chat", "--messages", "a.json", "--prompt", "a"], "must be without `--prompt`"),
        (["--chat", "--messages", "a.json", "--system", "a"], "must be without `--system`"),
        (["--chat"], "`--prompt` is missing"),
        (["--chat", "--messages", "nowhere.json"], "`--messages` nowhere.json cannot be read"),
    ],
)
def test_messages_stand_in_place_of_prompts(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tmp_path), *words]) == 2
    assert expected in capsys.readouterr().err.replace("\n", " ")
