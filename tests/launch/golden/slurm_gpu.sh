#!/usr/bin/env bash
#SBATCH --job-name=my-run-2
#SBATCH --nodes=2
#SBATCH --nodelist=here-0,here-1
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=1
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=my-run-2-%j.out
# 2 stages x 2 replicas on cluster homogeneous:hosts=2,devices=2.
# The end of the time loses what came after the last checkpoint: let `checkpoint.every`
# steps take a few minutes.
set -uo pipefail

mkdir -p 'runs/My run_2'
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
# The host of each rank, in their order: the placement of the plan.
cat > "$files/hosts" <<'HOSTS'
here-0
here-0
here-1
here-1
HOSTS
export SLURM_HOSTFILE="$files/hosts"

resume=()
for manifest in 'runs/My run_2'/checkpoints/step-????????/manifest.json; do
  if [[ -e "$manifest" ]]; then resume=(--resume); fi
done

srun --mpi=pmix --distribution=arbitrary --ntasks=4 --cpu-bind=cores \
  --kill-on-bad-exit=1 jaxpipe train my.toml --set 'run.folder=runs/My run_2' "${resume[@]}" &
ranks=$!

queue_again() {
  trap '' USR1
  kill -TERM "$ranks" 2> /dev/null
  wait "$ranks"
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
}
trap queue_again USR1

wait "$ranks"
