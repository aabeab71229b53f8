"""The certificate: what was proved of a plan, at which sizes, what was not, and the verdict."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import jax
import numpy as np

from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, check_plan_fits, job_from
from jaxpipe.errors import ConfigError
from jaxpipe.models import ModelConfig, build_model
from jaxpipe.plan import Plan, islands_of
from jaxpipe.runtime.checkpoint import flatten, restore
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.runtime.stage.trained import is_trained
from jaxpipe.verify.coded_outer_sums import CodedOuterSums
from jaxpipe.verify.differences import DeviceResult, Difference, Subject, differences
from jaxpipe.verify.one_device import DeviceState, DeviceStep, OneDevice, Tensors
from jaxpipe.verify.one_device_islands import OneDeviceIslands, exact_sum
from jaxpipe.verify.ranks import Compiler, train_ranks
from jaxpipe.verify.smaller_plan import Shrunk, shrunk
from jaxpipe.verify.stand_in import DataForm, form_of, stand_in

_TIMEOUT_S = 120.0
"""Of a message between two threads: less than a millisecond, but one rank may wait while another
compiles. On two cores with a load of 20, 30 seconds were too few once in 170 certificates."""
_MOST_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The verdict on a plan.

    `largest` has the largest difference of each subject, `wrong` all that are more than rounding,
    in the order of a step. `failure` is the error of a rank that ended all of them, or empty.
    """

    small: Shrunk
    largest: tuple[Difference, ...]
    wrong: tuple[Difference, ...]
    num_compared: int
    left_out: tuple[str, ...]
    seconds: float
    failure: str = ""

    @property
    def is_proved(self) -> bool:
        """Whether ranks have computed what one device computes."""
        return not self.wrong and not self.failure

    def lines(self) -> Iterator[str]:
        """Yield the certificate line by line."""
        yield "sizes       " + "; ".join(self.small.sizes)
        for difference in self.largest:
            yield f"{difference.subject:<28}{self._where(difference)}"
        for reason in self.left_out:
            yield f"not covered: {reason}"
        for difference in self.wrong[:_MOST_LINES]:
            yield f"WRONG  {difference.subject}: {self._where(difference)}"
        if len(self.wrong) > _MOST_LINES:
            yield f"WRONG  and {len(self.wrong) - _MOST_LINES} more"
        if self.failure:
            yield f"WRONG  the ranks did not finish: {self.failure}"
        verdict = "equal to one device" if self.is_proved else "NOT equal to one device"
        yield f"verdict     {verdict}: {self.num_compared} arrays in {self.seconds:.0f} s"

    def _where(self, difference: Difference) -> str:
        """Return the size of a difference, and the names of where it is."""
        plan, rank = self.small.plan, difference.rank
        words = [f"{difference.error:.1e}"]
        if difference.step >= 0:
            words.append(f"step {difference.step + 1}")
        if difference.tensor:
            words.append(difference.tensor)
        if difference.stage is not None:
            words.append(f"stage {difference.stage}")
        if difference.microbatch is not None:
            first = plan.first_microbatch(plan.replica(rank))
            words.append(f"microbatch {difference.microbatch - first}")
        real = self.small.ranks[rank]
        return ", ".join([*words, f"replica {plan.replica(rank)}", f"rank {real} of the plan"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A smaller plan as a job, and what one device computes of it."""

    small: Shrunk
    job: Job
    devices: tuple[DeviceResult, ...]
    left_out: tuple[str, ...]


def verify_plan(config: Config, plan: Plan) -> Certificate:
    """Compare all ranks of a plan with one device, at sizes shrunk as `verify.smaller_plan` says.

    Raises:
        ConfigError: this process has too few devices for the meshes of the plan.
        PlanError: the plan is not one for this configuration.
    """
    begin_s = time.perf_counter()
    certificate = compared(reference(config, plan, form_of(config)), compiler=CompileOnce())
    return replace(certificate, seconds=time.perf_counter() - begin_s)


def reference(config: Config, plan: Plan, form: DataForm) -> Reference:
    """Return what one device computes of a plan, shrunk, on samples of this form.

    Raises:
        ConfigError: this process has too few devices for the meshes of the plan.
        PlanError: the plan is not one for this configuration.
    """
    check_plan_fits(config, plan)
    small = shrunk(config, plan)
    check_plan_fits(small.config, small.plan, source="the smaller plan")
    _check_devices(small)
    left_out = small.left_out
    if not form.is_known:
        left_out = (*left_out, "masks of the data, which is not prepared: every token counts here")
    with _in_float64():
        job, devices = _one_device(_job(small, form))
    return Reference(small=small, job=job, devices=devices, left_out=left_out)


def compared(expected: Reference, *, compiler: Compiler) -> Certificate:
    """Return the certificate of all ranks, whose stages the `compiler` compiles."""
    begin_s = time.perf_counter()
    all_differences: list[Difference] = []
    failure = ""
    with _in_float64():
        try:
            results = train_ranks(expected.job, compiler=compiler)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        else:
            order = {subject: number for number, subject in enumerate(Subject)}
            all_differences = sorted(
                differences(expected.job, results, expected.devices),
                key=lambda difference: (difference.step, order[difference.subject]),
            )
    return Certificate(
        small=expected.small,
        largest=tuple(_largest(all_differences)),
        wrong=tuple(difference for difference in all_differences if difference.is_wrong),
        num_compared=len(all_differences),
        left_out=expected.left_out,
        seconds=time.perf_counter() - begin_s,
        failure=failure,
    )


def _check_devices(small: Shrunk) -> None:
    needed, present = small.num_devices, len(jax.local_devices())
    if needed > present:
        raise ConfigError(
            f"`mesh` needs {needed} devices, and this process has {present}: set "
            f"`XLA_FLAGS=--xla_force_host_platform_device_count={needed}`"
        )


@contextmanager
def _in_float64() -> Iterator[None]:
    """Let all threads compute in float64, which jax leaves off by default."""
    before = jax.dtypes.canonicalize_dtype("float64") == np.dtype("float64")
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _job(small: Shrunk, form: DataForm) -> Job:
    config = small.config
    wide = replace(config, model=_float64(config.model))
    run = replace(config.run, timeout_s=_TIMEOUT_S)
    names = ["cpu"] * small.plan.num_ranks
    return job_from(
        replace(config, run=run),
        small.plan,
        model=build_model(wide.model),
        devices=names,
        data=stand_in(form, config),
    )


def _float64(model: ModelConfig) -> ModelConfig:
    """Return a model that computes in float64, which no configuration may ask for."""
    wide = replace(model)
    for field in fields(wide):
        if field.name in ("param_dtype", "compute_dtype"):
            # A frozen dataclass can only be set like this; no run has this format.
            object.__setattr__(wide, field.name, "float64")
    return wide


def _one_device(job: Job) -> tuple[Job, tuple[DeviceResult, ...]]:
    """Return what one device computes of each island, and the job with a norm that binds."""
    device = OneDevice(job)
    parts = islands_of(job.plan, num_islands=max(1, job.outer.islands))
    first = device.start()
    states = [first for _ in parts]
    results = [device.step(first, step=0, island=part) for part in parts]
    least = min(result.norm for result in results)
    clip_norm = least / 2 if least > 0 else job.optimizer.clip_norm
    outer = _outer_steps(job, first, weights=[part.share for part in parts])
    steps: list[list[DeviceStep]] = []
    tensors: list[list[Tensors]] = []
    for step in range(job.train.steps):
        if step:
            results = [
                device.step(state, step=step, island=part)
                for state, part in zip(states, parts, strict=True)
            ]
        states = [
            device.update(state, result, clip_norm=clip_norm)
            for state, result in zip(states, results, strict=True)
        ]
        if outer is not None:
            states = _after_outer_step(outer, states, done=step + 1)
        steps.append(results)
        tensors.append([state.tensors() for state in states])
    # At the end all islands have the same parameters.
    held_out_loss = device.held_out_loss(states[0])
    clipped = replace(job, optimizer=replace(job.optimizer, clip_norm=clip_norm))
    return clipped, tuple(
        DeviceResult(
            replicas=part.replicas,
            first=first.tensors(),
            steps=of_part,
            tensors=tensors_of_part,
            held_out_loss=held_out_loss,
            outer_momentum={} if outer is None else outer.momentum,
        )
        for part, of_part, tensors_of_part in zip(
            parts, zip(*steps, strict=True), zip(*tensors, strict=True), strict=True
        )
    )


def _outer_steps(
    job: Job, first: DeviceState, *, weights: Sequence[float]
) -> OneDeviceIslands | None:
    if not job.outer.is_on:
        return None
    parameters = flatten(first.params, first_layer=0)
    trained = {name: parameters[name] for name in parameters if is_trained(job.model, name)}
    return OneDeviceIslands(
        job.outer,
        trained,
        weights=weights,
        num_steps=job.train.steps,
        summed=exact_sum if job.outer.codec is CodecKind.NONE else CodedOuterSums(job).total,
    )


def _after_outer_step(
    outer: OneDeviceIslands, states: Sequence[DeviceState], *, done: int
) -> list[DeviceState]:
    before = [flatten(state.params, first_layer=0) for state in states]
    after = outer.after_step(before, done=done)
    return [
        replace(state, params=restore(state.params, parameters, first_layer=0))
        for state, parameters in zip(states, after, strict=True)
    ]


def _largest(all_differences: Iterable[Difference]) -> Iterator[Difference]:
    """Yield the largest difference of each subject, in the order of a step."""
    by_subject: dict[Subject, Difference] = {}
    for difference in all_differences:
        before = by_subject.get(difference.subject)
        if before is None or difference.error > before.error:
            by_subject[difference.subject] = difference
    return (by_subject[subject] for subject in Subject if subject in by_subject)
