"""`jaxpipe verify`: prove that a plan computes what one device computes, before it runs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jaxpipe.errors import ConfigError

if TYPE_CHECKING:
    from jaxpipe.config import Config
    from jaxpipe.plan import Plan


def verify(
    source: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
) -> int:
    """Prove that all ranks of a plan compute what one device computes, at small sizes.

    The programs, stages and all-reduces of the ranks run as threads of this process, in float64,
    with fewer and smaller layers, replicas and microbatches of the same shape. The certificate says
    what was compared, at which sizes, what was not, and the largest difference; the exit code is 1
    if one is more than rounding. Fields of `[plan]` that are not set are searched, as `jaxpipe
    show` does. Nothing is written, and the data need not be prepared.

    Args:
        source: a TOML file, a configuration or a plan; a plan needs the model, such as
            `--set model.preset=gpt2`.
        settings: a change to it, such as `train.steps=10`; may be repeated.
    """
    from jaxpipe.runtime.process.quick_compiles import quick_flags, threads_of_devices
    from jaxpipe.verify.smaller_plan import shrunk

    config, plan = _config_and_plan(source, settings)
    num_devices = shrunk(config, plan).num_devices
    # Before jax starts: a GPU has no fast float64, and one device more than the plan has may lack.
    os.environ["XLA_FLAGS"] = quick_flags(os.environ.get("XLA_FLAGS", ""), num_devices=num_devices)
    os.environ.update(threads_of_devices(os.environ, num_devices=num_devices))
    os.environ["JAX_PLATFORMS"] = "cpu"

    from jaxpipe.verify.certificate import verify_plan

    certificate = verify_plan(config, plan)
    for line in certificate.lines():
        _print(line)
    return 0 if certificate.is_proved else 1


def _config_and_plan(source: Path, settings: tuple[str, ...]) -> "tuple[Config, Plan]":
    """Return the configuration of a file with its plan, or the plan of a file with settings."""
    from jaxpipe.config import config_of_settings, load_config
    from jaxpipe.plan import is_plan_file, read_resolved_plan
    from jaxpipe.propose.resolve import resolve

    if not is_plan_file(source):
        config = load_config(source, settings, notice=_print)
        resolution = resolve(config)
        if resolution.lines:
            _print("\n".join((*resolution.lines, "")))
        return config, resolution.plan
    if not any(setting.startswith("model.") for setting in settings):
        raise ConfigError(
            f"`model` is missing: {source} is a plan, which has none; add it, for example "
            "--set model.preset=gpt2"
        )
    plan = read_resolved_plan(source).plan
    batch = f"train.batch={plan.batch}"
    return config_of_settings((f"plan.file={source}", batch, *settings)), plan


def _print(text: str) -> None:
    from jaxpipe.run.terminal.console import console

    console.print(text, markup=False, soft_wrap=True)
