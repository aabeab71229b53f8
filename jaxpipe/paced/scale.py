"""How much smaller messages are than what they stand for, and how much slower time passes."""

from dataclasses import dataclass, replace

from jaxpipe.errors import ConfigError
from jaxpipe.simulate.engine.step_model import StepModel

_FITTING_BYTES = 2048
"""A message of so many bytes leaves at once over any MPI, which asks nobody first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What makes an emulation fit the machine.

    Every message has `message` of the bytes that it stands for, and links have as much less
    bandwidth; None: the largest message has 2 KiB. Every emulated second takes `time` seconds:
    waits, latencies and transfers alike; results are in emulated seconds.

    Raises:
        ConfigError: a number is out of its range.
    """

    message: float | None = None
    time: float = 1.0

    def __post_init__(self) -> None:
        for field in ("message", "time"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise ConfigError(f"something is left: `{field}` is {value}; make it above 0")

    def fitted(self, job: StepModel) -> "Scale":
        """Return the scale for a job, with a number for its messages.

        A message that is larger than what it stands for has no use.
        """
        if self.message is not None:
            return self
        sums = (each for group in job.collectives.values() for each in group)
        parts = (transfer.num_bytes for each in sums for transfer in each)
        largest = max(job.activation_bytes, *parts, _FITTING_BYTES)
        return replace(self, message=_FITTING_BYTES / largest)

    def num_bytes(self, meant: float) -> int:
        """Return the bytes of a message that stands for `meant` bytes: one at least, if it is any.

        >>> scale = Scale(message=1 / 4096)
        >>> scale.num_bytes(8 * 2**20), scale.num_bytes(1), scale.num_bytes(0)
        (2048, 1, 0)
        """
        return max(1, round(meant * self._message)) if meant > 0 else 0

    def meant(self, num_bytes: int) -> float:
        """Return the bytes for which a message stands."""
        return num_bytes / self._message

    @property
    def _message(self) -> float:
        assert self.message is not None, "fit the scale to a job first"
        return self.message
