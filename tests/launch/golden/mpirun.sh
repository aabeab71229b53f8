#!/usr/bin/env bash
# 2 stages x 2 replicas on cluster two-region.
# Started again, it goes on from the newest checkpoint.
set -euo pipefail

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
cat > "$files/hosts" <<'HOSTS'
ohio-0 slots=1
ohio-1 slots=1
virginia-0 slots=1
virginia-1 slots=1
HOSTS
cat > "$files/ranks" <<'RANKS'
rank 0=ohio-0 slot=0
rank 1=ohio-1 slot=0
rank 2=virginia-0 slot=0
rank 3=virginia-1 slot=0
RANKS

resume=()
for manifest in 'runs/My run_2'/checkpoints/step-????????/manifest.json; do
  if [[ -e "$manifest" ]]; then resume=(--resume); fi
done

# Ranks pin themselves, so mpirun does not bind them.
mpirun --hostfile "$files/hosts" --map-by "rankfile:FILE=$files/ranks" --bind-to none \
  -n 4 jaxpipe train my.toml --set 'run.folder=runs/My run_2' "${resume[@]}"
