#!/usr/bin/env bash
#SBATCH --job-name=my-run-2
#SBATCH --nodes=4
#SBATCH --nodelist=ohio-0,ohio-1,virginia-0,virginia-1
#SBATCH --ntasks-per-node=1
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=my-run-2-%j.out
# 2 stages x 2 replicas on cluster two-region.
set -uo pipefail

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.arena_max=1}
jaxpipe=$(command -v jaxpipe) || { echo 'no `jaxpipe` is on the path' >&2; exit 127; }
folder='runs/My run_2'
last=$folder/checkpoints/step-00000600/manifest.json
find_newest() {
  newest=''
  for manifest in "$folder"/checkpoints/step-????????/manifest.json; do
    if [[ -e "$manifest" ]]; then newest=$manifest; fi
  done
}
find_newest
if [[ -n "$newest" ]]; then resume=(--resume); else resume=(); fi
before=$newest

cat > "$files/ranks" <<'RANKS'
rank 0=ohio-0 slot=0
rank 1=ohio-1 slot=0
rank 2=virginia-0 slot=0
rank 3=virginia-1 slot=0
RANKS
mpirun --with-ft ulfm --mca mpi_ft_detector_thread true \
  --map-by "rankfile:FILE=$files/ranks" --bind-to none \
  -n 4 -x GLIBC_TUNABLES "$jaxpipe" train my.toml --set 'run.folder=runs/My run_2' "${resume[@]}" &
ranks=$!
stopping=''
trap 'stopping=yes; kill -USR1 "$ranks" 2> /dev/null' USR1
wait "$ranks"
# Either the ranks have ended, or they have just been signalled to save and stop.
for (( second = 0; second < 270; second++ )); do
  kill -0 "$ranks" 2> /dev/null || break
  sleep 1
done
if kill -0 "$ranks" 2> /dev/null; then
  echo 'the ranks did not stop in 270 s' >&2
  code=1
else
  wait "$ranks"
  code=$?
fi
# On preemption, SLURM sends TERM to the ranks, which save if they can.
preempted=''
job=$(scontrol show job "$SLURM_JOB_ID" 2> /dev/null)
if [[ "$job" == *PreemptTime=[0-9]* ]]; then stopping=yes preempted=yes; fi
# Exit code 0 may also mean a requested stop, or an mpirun that has lost a host.
if (( code == 0 )) && [[ ! -e "$last" ]]; then
  if [[ -n "$stopping" ]]; then code=143; else code=1; fi
fi
if [[ -n "$stopping" && ! -e "$last" ]]; then
  find_newest
  if [[ "$newest" != "$before" || -n "$preempted" ]]; then
    scontrol requeue "$SLURM_JOB_ID" && exit 0
  else
    echo 'not requeued: the time limit is too short for a new checkpoint' >&2
    code=1
  fi
fi
exit "$code"
