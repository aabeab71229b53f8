"""What is printed: text of any origin cannot command the terminal."""

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from jaxpipe.cli.main import main
from jaxpipe.errors import one_line, printable
from jaxpipe.run.terminal.console import PrintableConsole

ANY = st.text(max_size=20) | st.text(st.sampled_from("a\x1b[2J\x07\x9b\r\u202e\udc9b\n\t"))


def obeyed(text: str) -> set[str]:
    """Return the characters of a text that a terminal obeys."""
    return {each for each in text if not each.isprintable()} - set(
        "\n\t\xa0\u200c\u200d\u202f\u3000"
    )


@given(text=ANY)
def test_printable_text_commands_nothing(text: str):
    assert not obeyed(printable(text))
    assert printable(printable(text)) == printable(text)
    if text.isprintable():
        assert printable(text) == text


@given(text=ANY)
def test_a_console_prints_text_and_no_commands(text: str):
    file = io.StringIO()
    PrintableConsole(file=file, highlight=False, soft_wrap=True).print(text, markup=False)
    assert not obeyed(file.getvalue())
    file.getvalue().encode()


def test_a_console_has_colours_of_its_own():
    file = io.StringIO()
    console = PrintableConsole(file=file, force_terminal=True, color_system="standard")
    table = Table("a\x1b]0;title\x07", box=None, header_style="bold")
    console.print(table)
    assert file.getvalue().startswith("\x1b[1m")
    assert "\x1b]" not in file.getvalue()
    assert "\\x1b]0;t" in file.getvalue()


def test_errors_and_warnings_are_printed_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["topo", "show", "a\x1b[2Jb"]) == 2
    assert "a\\x1b[2Jb" in capsys.readouterr().err.replace("\\\\", "\\")
    assert one_line(3, ValueError("\x1b[2J\n")) == "rank 3: ValueError: \\x1b[2J"
    lacking = one_line(0, RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."))
    assert "bytes. lower `plan.microbatch`, raise `plan.stages`" in lacking
    assert logging.lastResort is not None
    record = logging.LogRecord("jaxpipe", logging.WARNING, "", 0, "a \x1b[2J", None, None)
    assert logging.lastResort.format(record) == "a \\x1b[2J"


def test_a_reader_that_has_seen_enough_is_no_failure():
    class Closed(io.StringIO):
        def write(self, _: str, /) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):  # which `with_exit_code` turns into 0
        PrintableConsole(file=Closed()).print("much")
