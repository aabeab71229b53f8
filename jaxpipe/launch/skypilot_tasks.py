"""Task files of SkyPilot: one for each region of the plan, since a cluster of it is in one region.

::

    region     file          its nodes
    ohio       ohio.yaml     the first of them runs mpirun, over the addresses of all hosts
    virginia   virginia.yaml      wait for mpirun's ssh, as clusters that stay up

A plan's regions have names of its cluster file, so that the cloud's region is given where a task is
started: `sky launch --infra aws/us-east-2`. Nodes of a task are equal.

Source: `get_task_schema` and `get_resources_schema` of SkyPilot 0.14.1.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING

from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.shell import EXPORT, begin_lines, file_lines, wait_lines
from jaxpipe.launch.worker_hosts import (
    check_alike,
    ranks_per_worker,
    worker_rank_lines,
    worker_slots,
)
from jaxpipe.launch.yaml_words import check_image, scalar

if TYPE_CHECKING:
    from jaxpipe.topo import Device

_INSTEAD = "use `--target` mpirun, or plan on like devices, the same number on each host"
_ACCELERATORS = {
    "V100-SXM2": "V100",
    "V100-SXM2-32GB": "V100-32GB",
    "A100-40GB": "A100",
    "RTX-3090": "RTX3090",
    "RTX-4090": "RTX4090",
    "RTX-5090": "RTX5090",
    "RTX-A6000": "RTXA6000",
}
"""SkyPilot's names where ours differ, from memory: its catalogue needs a network."""


def skypilot_tasks(launch: Launch, *, image: str) -> dict[str, str]:
    """Return the text of each task file by its name; `image` has jaxpipe and Open MPI.

    Raises:
        ConfigError: the image is not a name of one.
        PlanError: hosts of a region are unlike, or have different numbers of ranks.
    """
    check_image(image)
    by_region: dict[str, list[Device]] = {}
    for device in launch.devices:
        by_region.setdefault(device.region, []).append(device)
    names = _names(list(by_region))
    hosts = {
        region: list(dict.fromkeys(device.host for device in devices))
        for region, devices in by_region.items()
    }
    tasks: dict[str, str] = {}
    first = next(iter(names.values()))
    for region, devices in by_region.items():
        check_alike(devices, "skypilot", instead=_INSTEAD)
        runs = not tasks
        lines = [
            *(
                _how_to_start(launch, names, hosts)
                if runs
                else [f"# {first} says how to start it."]
            ),
            f"name: {scalar(_cluster(launch, names[region]))}",
            "workdir: .",
            f"num_nodes: {len(hosts[region])}",
            *_resources(launch, devices, image=image),
            *(["envs:", "  ADDRESSES: null"] if runs else []),
            "run: |",
            # Elsewhere no rank is started: it shows that the image works.
            *(f"  {line}" for line in (_script(launch, hosts) if runs else ["jaxpipe --version"])),
        ]
        tasks[names[region]] = "\n".join(lines) + "\n"
    return tasks


def _names(regions: Sequence[str]) -> dict[str, str]:
    """Return the file of each region, with a number where two would have the same.

    >>> _names(["us east", "us-east", "on"])
    {'us east': 'us-east.yaml', 'us-east': 'us-east-1.yaml', 'on': 'on.yaml'}
    """
    names: dict[str, str] = {}
    for region in regions:
        stem = re.sub(r"[^a-z0-9]+", "-", region.lower()).strip("-")[:20].strip("-") or "region"
        names_of_stem = chain([f"{stem}.yaml"], (f"{stem}-{n}.yaml" for n in count(1)))
        names[region] = next(name for name in names_of_stem if name not in names.values())
    return names


def _how_to_start(
    launch: Launch, names: dict[str, str], hosts: dict[str, list[str]]
) -> Iterator[str]:
    first, *others = names.values()
    counts = ", ".join(f"{len(hosts[region])} of {names[region]}" for region in names)
    yield launch.heading
    yield "# Start the other regions first, then this one with the addresses of all hosts,"
    yield f"# separated by spaces, in this order: {counts}."
    yield "# Hosts must reach each other by ssh and TCP."
    for file in others:
        yield f"#   sky launch --infra CLOUD/REGION --cluster {_cluster(launch, file)} {file}"
    cluster = _cluster(launch, first)
    yield f"#   sky launch --infra CLOUD/REGION --cluster {cluster} --env ADDRESSES='...' {first}"


def _cluster(launch: Launch, file: str) -> str:
    return f"{launch.name}-{file.removesuffix('.yaml')}"


def _resources(launch: Launch, devices: "Sequence[Device]", *, image: str) -> list[str]:
    num_gpus = ranks_per_worker(devices, "a task", instead=_INSTEAD) * launch.gpus_each
    gpu = devices[0].gpu
    lines = ["resources:", f"  image_id: {scalar(f'docker:{image}')}"]
    if gpu is not None:
        name = _ACCELERATORS.get(gpu.name, gpu.name)
        lines.append(f'  accelerators: "{name}:{num_gpus}"')
    return lines


def _script(launch: Launch, hosts: dict[str, list[str]]) -> Iterator[str]:
    all_hosts = [host for of_region in hosts.values() for host in of_region]
    order = ", ".join(f"{region} {len(of_region)}" for region, of_region in hosts.items())
    wrong = f"`ADDRESSES` must be those of {len(all_hosts)} hosts: {order}"
    yield "set -uo pipefail"
    yield 'if [[ "$SKYPILOT_NODE_RANK" != 0 ]]; then exit 0; fi'
    yield 'read -r -a addresses <<< "$ADDRESSES"'
    yield f"if (( ${{#addresses[@]}} != {len(all_hosts)} )) || \\"
    yield '  [[ "${addresses[*]}" =~ [^A-Za-z0-9.:\\ -] ]]; then'
    yield f"  echo {shlex.quote(wrong)} >&2; exit 2"
    yield "fi"
    yield "files=$(mktemp -d)"
    yield "trap 'rm -rf \"$files\"' EXIT"
    most = max(launch.ranks_of_host.values())
    yield f'printf \'%s slots={most}\\n\' "${{addresses[@]}}" > "$files/hosts"'
    yield from file_lines('"$files/ranks"', worker_rank_lines(launch, all_hosts), word="RANKS")
    yield from begin_lines(launch)
    # Containers may run as root, which mpirun refuses by default.
    yield f"mpirun --allow-run-as-root {' '.join(launch.survival_options)}".rstrip() + " \\"
    yield '  --hostfile "$files/hosts" --map-by "rankfile:FILE=$files/ranks" --bind-to none \\'
    command = launch.mpirun_command(worker_slots(launch))
    yield f'  -n {launch.plan.num_ranks} {EXPORT} {command} "${{resume[@]}}" &'
    yield from wait_lines(launch)
