"""A manifest of Kubeflow's MPIJob, version v2beta1: a launcher, and a worker per host.

Hosts of the plan become workers, in the order of their first ranks; the rankfile refers to them by
that order. A launcher that fails is restarted and resumes from the newest checkpoint; so is one
whose pod is evicted: it saves and fails.

Source: the reference and the controller of the Kubeflow MPI Operator, v2beta1; `prte-map(1)` for
`+n0`.
"""

import re
from collections.abc import Iterator

from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.shell import EXPORT, begin_lines, file_lines, wait_lines

_RETRIES = 10
_TO_SAVE_S = 120
"""Seconds that the launcher has to save when its pod is evicted."""
_HOSTFILE = "/etc/mpi/hostfile"
"""Where the operator puts it; Open MPI 5 ignores the variable that names it."""
_IMAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/:@-]{0,510}[A-Za-z0-9_])?")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_NO_STRINGS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
"""Words that YAML 1.1 reads as something else than a string."""


def mpijob_manifest(launch: Launch, *, image: str, claim: str) -> str:
    """Return YAML for `kubectl apply`: `image` has jaxpipe and Open MPI, `claim` the shared files.

    Raises:
        ConfigError: the image or the claim is not a name of one.
        PlanError: hosts have different numbers of ranks, or unlike devices: workers are equal, and
            Kubernetes puts each on any node.
    """
    _check_names(image=image, claim=claim)
    image, claim = _scalar(image), _scalar(claim)
    _check_alike(launch)
    ranks_per_host = _ranks_per_host(launch)
    lines = [
        "apiVersion: kubeflow.org/v2beta1",
        "kind: MPIJob",
        "metadata:",
        f"  name: {_scalar(launch.name)}",
        "spec:",
        f"  slotsPerWorker: {ranks_per_host}",
        "  runPolicy:",
        "    cleanPodPolicy: Running",
        f"    backoffLimit: {_RETRIES}",
        "  mpiReplicaSpecs:",
        "    Launcher:",
        "      replicas: 1",
        "      restartPolicy: OnFailure",
        "      template:",
        "        spec:",
        f"          terminationGracePeriodSeconds: {_TO_SAVE_S}",
        "          containers:",
        *_container("launcher", image),
        '              command: ["bash", "-c"]',
        "              args:",
        "                - |",
        *(f"                  {line}".rstrip() for line in _script(launch)),
        *_volume(claim),
        "    Worker:",
        f"      replicas: {len(launch.ranks_of_host)}",
        "      restartPolicy: Never",
        "      template:",
        "        spec:",
        "          containers:",
        *_container("worker", image),
        *_gpus(ranks_per_host * launch.gpus_each if launch.uses_gpus else 0),
        *_volume(claim),
    ]
    return "\n".join(lines) + "\n"


def _check_names(*, image: str, claim: str) -> None:
    if not _IMAGE.fullmatch(image):
        raise ConfigError(
            "`--image` must be the name of a container image, such as registry.example/jaxpipe:1, "
            f"not {image!r:.80}"
        )
    if not _CLAIM.fullmatch(claim):
        raise ConfigError(
            f"`--claim` must be small letters, digits, `-` and `.`, not {claim!r:.80}"
        )


def _check_alike(launch: Launch) -> None:
    """Check that it does not matter which worker is which host.

    Raises:
        PlanError: the devices with ranks are unlike.
    """
    kinds = {
        (device.gpu, device.effective_flops_per_s, device.peak_flops_per_s, device.memory_bytes): (
            device.name
        )
        for device in launch.devices
    }
    if len(kinds) > 1:
        raise PlanError(
            "`--target` mpijob starts equal workers, which Kubernetes puts on any node: the plan "
            f"has unlike devices, such as {' and '.join(list(kinds.values())[:2])}, and would lose "
            "its placement; use `--target` mpirun or slurm, or plan on like devices"
        )


def _ranks_per_host(launch: Launch) -> int:
    """Return the number of ranks of each host, which workers must have in common."""
    counts = launch.ranks_of_host
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{host} {count}" for host, count in counts.items())
        raise PlanError(
            "`plan` must have the same number of ranks for each worker of an MPIJob, not "
            f"{listed}; plan so, or use --target slurm or mpirun"
        )
    return next(iter(counts.values()))


def _scalar(name: str) -> str:
    """Return the YAML of a name: in quotes where it would be read as a number, a date or a truth.

    >>> _scalar("jaxpipe:1"), _scalar("on"), _scalar("1.5")
    ('jaxpipe:1', '"on"', '"1.5"')
    """
    is_plain = name[0].isalpha() and name.lower() not in _NO_STRINGS
    return name if is_plain else f'"{name}"'


def _script(launch: Launch) -> Iterator[str]:
    workers = {host: number for number, host in enumerate(launch.ranks_of_host)}
    taken = dict.fromkeys(workers, 0)
    slots: list[int] = []
    for device in launch.devices:
        slots.append(taken[device.host])
        taken[device.host] += 1
    yield "set -uo pipefail"
    # 'RANKS' in quotes: the shell expands nothing in these lines.
    ranks = enumerate(zip(launch.devices, slots, strict=True))
    yield from file_lines(
        "/tmp/ranks",
        (f"rank {rank}=+n{workers[device.host]} slot={slot}" for rank, (device, slot) in ranks),
        word="RANKS",
    )
    yield from begin_lines(launch)
    # Containers run as root, which mpirun refuses by default.
    yield f"mpirun --allow-run-as-root {' '.join(launch.survival_options)}".rstrip() + " \\"
    yield f"  --hostfile {_HOSTFILE} --map-by rankfile:FILE=/tmp/ranks --bind-to none \\"
    yield f'  -n {launch.plan.num_ranks} {EXPORT} {launch.mpirun_command(slots)} "${{resume[@]}}" &'
    yield from wait_lines(launch)


def _container(name: str, image: str) -> list[str]:
    return [
        f"            - name: {name}",
        f"              image: {image}",
        "              workingDir: /work",
        "              volumeMounts:",
        "                - name: work",
        "                  mountPath: /work",
    ]


def _gpus(count: int) -> list[str]:
    if not count:
        return []
    return [
        "              resources:",
        "                limits:",
        f"                  nvidia.com/gpu: {count}",
    ]


def _volume(claim: str) -> list[str]:
    return [
        "          volumes:",
        "            - name: work",
        "              persistentVolumeClaim:",
        f"                claimName: {claim}",
    ]
