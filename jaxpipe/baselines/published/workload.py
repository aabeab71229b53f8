"""The trained model, as far as time is concerned: FLOPs and bytes of its microbatches."""

from dataclasses import dataclass

from jaxpipe.errors import ConfigError
from jaxpipe.topo.gpu import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A GPT of `num_layers` layers, trained on `batch` samples per step.

    With `recompute` a backward repeats the forward of each layer, of which only the input is kept.

    Raises:
        ConfigError: there is no layer or no sample.
    """

    num_layers: int
    batch: int
    dim: int = 2048
    sequence: int = 2048
    vocabulary: int = 28998
    heads: int = 16
    precision: Precision = Precision.FP16
    microbatch: int = 1
    recompute: bool = True

    def __post_init__(self) -> None:
        for field in ("num_layers", "batch", "microbatch"):
            if getattr(self, field) < 1:
                raise ConfigError(f"`{field}` must be at least 1, not {getattr(self, field)}")

    @property
    def bytes_per_value(self) -> int:
        """Bytes of one activation, parameter or gradient."""
        return 4 if self.precision in (Precision.FP32, Precision.TF32) else 2

    @property
    def backward_forwards(self) -> int:
        """Forwards' worth of FLOPs of a backward: two, and the forward again with `recompute`."""
        return 3 if self.recompute else 2

    @property
    def layer_forward_flop(self) -> float:
        """FLOPs of one layer's forward on one sample: 24 s h^2 + 4 s^2 h."""
        s, h = self.sequence, self.dim
        return 24.0 * s * h**2 + 4.0 * s**2 * h

    @property
    def activation_bytes(self) -> int:
        """Bytes of the activations that one stage sends to the next for one microbatch.

        >>> Workload(num_layers=24, batch=1).activation_bytes
        8388608
        """
        return self.microbatch * self.sequence * self.dim * self.bytes_per_value

    def gradient_bytes(self, num_layers: int, *, is_first: bool) -> int:
        """Return the bytes of a stage's gradients; the first stage also holds the embeddings.

        >>> Workload(num_layers=24, batch=1).gradient_bytes(3, is_first=True)
        429314048
        """
        # h^2: attention 4, MLP 8. h: their biases 4 + 5, two layer norms 4.
        layers = num_layers * (12 * self.dim**2 + 13 * self.dim)
        embeddings = (self.vocabulary + self.sequence) * self.dim if is_first else 0
        return (layers + embeddings) * self.bytes_per_value

    @property
    def step_flop(self) -> float:
        """FLOPs of a step as DT-FM counts them: forward, recompute and a backward of two forwards.

        >>> round(Workload(num_layers=24, batch=1024).step_flop / 1e15, 2)
        23.64
        """
        return 4.0 * self.batch * self.num_layers * self.layer_forward_flop
