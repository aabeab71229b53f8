"""Settings of the kernel are read as they are, and advice is given only where it pays."""

from pathlib import Path

import pytest

from jaxpipe.topo.host_tcp import TcpSettings, read_tcp_settings, tcp_advice

_DEFAULT = TcpSettings(
    slow_start_after_idle=True,
    congestion_control="cubic",
    largest_receive_bytes=6 * 2**20,
    largest_send_bytes=4 * 2**20,
)
_GOOD = TcpSettings(
    slow_start_after_idle=False,
    congestion_control="cubic",
    largest_receive_bytes=2**27,
    largest_send_bytes=2**27,
)
_BBR = TcpSettings(
    slow_start_after_idle=True,
    congestion_control="bbr",
    largest_receive_bytes=2**27,
    largest_send_bytes=2**27,
)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def test_the_settings_are_read(tmp_path: Path):
    write(
        tmp_path,
        tcp_slow_start_after_idle="1",
        tcp_congestion_control="cubic",
        tcp_rmem="4096\t131072\t6291456",
        tcp_wmem="4096\t16384\t4194304",
    )
    assert read_tcp_settings(tmp_path) == _DEFAULT


@pytest.mark.parametrize("text", ["", "4096 16384", "a b c"])
def test_a_kernel_that_says_something_else_says_nothing(tmp_path: Path, text: str):
    write(
        tmp_path,
        tcp_slow_start_after_idle="1",
        tcp_congestion_control="cubic",
        tcp_rmem="1 2 3",
        tcp_wmem=text,
    )
    assert read_tcp_settings(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "rtt_s", "bytes_in_flight", "commands"),
    [
        (_DEFAULT, 0.134, 1e6, ["tcp_slow_start_after_idle=0"]),
        (_DEFAULT, 0.134, 16.75e6, ["tcp_slow_start_after_idle=0", 'tcp_wmem="4096 16384 67108']),
        (_GOOD, 0.134, 16.75e6, []),
        (_BBR, 0.134, 16.75e6, []),
        (_GOOD, 0.4, 100e6, ["tcp_rmem="]),
        (_DEFAULT, 1e-4, 16.75e6, []),  # neighbours
        (None, 0.134, 16.75e6, []),
    ],
)
def test_advice_is_given_where_it_pays(
    settings: TcpSettings | None, rtt_s: float, bytes_in_flight: float, commands: list[str]
):
    given = list(tcp_advice([settings, _GOOD], rtt_s=rtt_s, bytes_in_flight=bytes_in_flight))
    assert len(given) == len(commands)
    for advice, command in zip(given, commands, strict=True):
        assert command in advice.command
        assert advice.command.startswith("sysctl -w net.ipv4.tcp_")
