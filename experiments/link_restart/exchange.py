"""One end of a TCP connection: `python -m experiments.link_restart.exchange ROLE ADDRESS ...`.

The sender sends a message after each pause; the receiver prints when the last byte of each came.
Both clocks are the machine's monotonic one, which all network namespaces share.
"""

import json
import socket
import sys
import time

PORT = 7077
_TIMEOUT_S = 60.0
_BLOCK = 1 << 20


def main() -> None:
    """Run the role of the first argument; print a JSON list of times in seconds."""
    role, address, text = sys.argv[1:]
    messages: list[tuple[float, int]] = json.loads(text)  # seconds of the pause, bytes
    times = _receive(address, messages) if role == "receive" else _send(address, messages)
    print(json.dumps(times), flush=True)


def _receive(address: str, messages: list[tuple[float, int]]) -> list[float]:
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        server.settimeout(_TIMEOUT_S)
        connection, _ = server.accept()
    buffer = memoryview(bytearray(_BLOCK))
    arrived = []
    with connection:
        connection.settimeout(_TIMEOUT_S)
        for _, num_bytes in messages:
            left = num_bytes
            while left:
                count = connection.recv_into(buffer[: min(left, _BLOCK)])
                if not count:
                    raise ConnectionError(f"the sender ended with {left} bytes of a message left")
                left -= count
            arrived.append(time.monotonic())
            connection.sendall(b"!")  # the sender's pause begins when all has arrived
    return arrived


def _send(address: str, messages: list[tuple[float, int]]) -> list[float]:
    started = []
    with socket.create_connection((address, PORT), timeout=_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pause_s, num_bytes in messages:
            time.sleep(pause_s)
            started.append(time.monotonic())
            connection.sendall(bytes(num_bytes))
            connection.recv(1)
    return started


if __name__ == "__main__":
    main()
