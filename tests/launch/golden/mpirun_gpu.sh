#!/usr/bin/env bash
# 2 stages x 2 replicas on cluster homogeneous:hosts=2,devices=2.
# Started again, it goes on from the newest checkpoint.
set -euo pipefail

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
cat > "$files/hosts" <<'HOSTS'
here-0 slots=2
here-1 slots=2
HOSTS
cat > "$files/ranks" <<'RANKS'
rank 0=here-0 slot=0
rank 1=here-0 slot=1
rank 2=here-1 slot=0
rank 3=here-1 slot=1
RANKS

resume=()
for manifest in 'runs/My run_2'/checkpoints/step-????????/manifest.json; do
  if [[ -e "$manifest" ]]; then resume=(--resume); fi
done

# Ranks pin themselves, so mpirun does not bind them.
mpirun --hostfile "$files/hosts" --map-by "rankfile:FILE=$files/ranks" --bind-to none \
  -n 4 bash -c 'slots=(0 1 0 1); CUDA_VISIBLE_DEVICES=${slots[$OMPI_COMM_WORLD_RANK]} exec "$@"' rank jaxpipe train my.toml --set 'run.folder=runs/My run_2' "${resume[@]}"
