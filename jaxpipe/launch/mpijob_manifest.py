"""A manifest of Kubeflow's MPIJob, version v2beta1: a launcher, and a worker per host.

Hosts of the plan become workers, in the order of their first ranks; the rankfile refers to them by
that order. A launcher that fails is restarted and resumes from the newest checkpoint; so is one
whose pod is evicted: it saves and fails.

Source: the reference and the controller of the Kubeflow MPI Operator, v2beta1.
"""

import re
from collections.abc import Iterator

from jaxpipe.errors import ConfigError
from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.shell import EXPORT, begin_lines, file_lines, wait_lines
from jaxpipe.launch.worker_hosts import (
    check_alike,
    ranks_per_worker,
    worker_rank_lines,
    worker_slots,
)
from jaxpipe.launch.yaml_words import check_image, scalar

_RETRIES = 10
_TO_SAVE_S = 120
"""Seconds that the launcher has to save when its pod is evicted."""
_HOSTFILE = "/etc/mpi/hostfile"
"""Where the operator puts it; Open MPI 5 ignores the variable that names it."""
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_INSTEAD = "use `--target` mpirun or slurm, or plan on like devices, the same number on each host"


def mpijob_manifest(launch: Launch, *, image: str, claim: str) -> str:
    """Return YAML for `kubectl apply`: `image` has jaxpipe and Open MPI, `claim` the shared files.

    Raises:
        ConfigError: the image or the claim is not a name of one.
        PlanError: hosts have different numbers of ranks, or unlike devices: workers are equal, and
            Kubernetes puts each on any node.
    """
    _check_names(image=image, claim=claim)
    image, claim = scalar(image), scalar(claim)
    check_alike(launch.devices, "mpijob", instead=_INSTEAD)
    ranks_per_host = ranks_per_worker(launch.devices, "an MPIJob", instead=_INSTEAD)
    lines = [
        "apiVersion: kubeflow.org/v2beta1",
        "kind: MPIJob",
        "metadata:",
        f"  name: {scalar(launch.name)}",
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
    check_image(image)
    if not _CLAIM.fullmatch(claim):
        raise ConfigError(
            f"`--claim` must be small letters, digits, `-` and `.`, not {claim!r:.80}"
        )


def _script(launch: Launch) -> Iterator[str]:
    yield "set -uo pipefail"
    # 'RANKS' in quotes: the shell expands nothing in these lines.
    lines = worker_rank_lines(launch, list(launch.ranks_of_host))
    yield from file_lines("/tmp/ranks", lines, word="RANKS")
    yield from begin_lines(launch)
    # Containers run as root, which mpirun refuses by default.
    yield f"mpirun --allow-run-as-root {' '.join(launch.survival_options)}".rstrip() + " \\"
    yield f"  --hostfile {_HOSTFILE} --map-by rankfile:FILE=/tmp/ranks --bind-to none \\"
    command = launch.mpirun_command(worker_slots(launch))
    yield f'  -n {launch.plan.num_ranks} {EXPORT} {command} "${{resume[@]}}" &'
    yield from wait_lines(launch)


def _container(name: str, image: str) -> list[str]:
    return [
        f"            - name: {name}",
        f"              image: {image}",
        "              workingDir: /work",
        # The operator puts keys into the folder of root, as whom sshd runs.
        "              securityContext:",
        "                runAsUser: 0",
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
