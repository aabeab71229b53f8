"""What a profile is measured of: everything that its seconds depend on besides the machine.

A task travels to the process that measures as JSON, and is the key under which its profile is kept.
Needs no jax.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from jaxpipe.errors import ConfigError
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.models import ModelConfig, config_type
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.schedule.remat import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileTask:
    """A model, how its stages compute, and the sizes of microbatches to measure, in samples.

    Samples have the `sequence` of `model`: replace it where runs train on shorter ones.
    """

    model: ModelConfig
    microbatches: tuple[int, ...] = (1, 2, 4)
    remat: Remat = Remat.NONE
    loop: Loop = Loop.UNROLLED
    matmul_precision: MatmulPrecision = MatmulPrecision.TF32
    lora: LoraConfig = field(default_factory=LoraConfig)
    frozen: tuple[str, ...] = ()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        if not self.microbatches or min(self.microbatches) < 1:
            raise ConfigError(f"`microbatches` must be at least 1 each, not {self.microbatches}")

    def fields(self) -> dict[str, Any]:
        """Return the task as plain data.

        >>> from jaxpipe.models import preset_config
        >>> task = ProfileTask(model=preset_config("llama-tiny"))
        >>> task_from(task.fields()) == task
        True
        """
        fields: dict[str, Any] = msgspec.to_builtins(self)
        # Learning rates and the like change no seconds.
        return {**fields, "optimizer": {"name": fields["optimizer"]["name"]}}


def task_from(fields: dict[str, Any]) -> ProfileTask:
    """Return the task of plain data."""
    model = msgspec.convert(fields["model"], config_type(fields["model"]))
    # The union of two families is none that msgspec decodes.
    rest = {name: value for name, value in fields.items() if name != "model"}
    return ProfileTask(model=model, **msgspec.convert(rest, _Rest).fields())


class _Rest(msgspec.Struct, kw_only=True):
    microbatches: tuple[int, ...]
    remat: Remat
    loop: Loop
    matmul_precision: MatmulPrecision
    lora: LoraConfig
    frozen: tuple[str, ...]
    optimizer: OptimizerConfig

    def fields(self) -> dict[str, Any]:
        """Return the fields by their names, converted."""
        return {name: getattr(self, name) for name in self.__struct_fields__}
