"""How much smaller messages are than what they stand for, and how much slower time passes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What makes an emulation fit the machine.

    Every message has `message` of the bytes that it stands for, and links have as much less
    bandwidth. Every emulated second takes `time` seconds: waits, latencies and transfers alike;
    results are in emulated seconds.
    """

    message: float = 1 / 4096
    time: float = 1.0

    def __post_init__(self) -> None:
        for field in ("message", "time"):
            if not getattr(self, field) > 0:
                raise ValueError(f"`{field}` must be above 0, is {getattr(self, field)}")

    def num_bytes(self, meant: float) -> int:
        """Return the bytes of a message that stands for `meant` bytes: one at least, if it is any.

        >>> Scale().num_bytes(8 * 2**20), Scale().num_bytes(1), Scale().num_bytes(0)
        (2048, 1, 0)
        """
        return max(1, round(meant * self.message)) if meant > 0 else 0
