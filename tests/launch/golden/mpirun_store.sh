#!/usr/bin/env bash
# 2 stages x 2 replicas on cluster two-region.
# Restarted, it resumes from the newest checkpoint. SIGTERM makes it save and stop.
# Exit code: 0 after the last step, 143 if it was stopped before that.
set -uo pipefail

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

export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.arena_max=1}
jaxpipe=$(command -v jaxpipe) || { echo 'no `jaxpipe` is on the path' >&2; exit 127; }
store='s3://bucket/my run'
last=600
find_newest() {
  newest=$("$jaxpipe" runs --newest "$store") || exit 1
}
find_newest
if [[ -n "$newest" ]]; then resume=(--resume); else resume=(); fi

# Ranks pin themselves, so mpirun does not bind them.
mpirun --hostfile "$files/hosts" \
  --map-by "rankfile:FILE=$files/ranks" --bind-to none \
  -n 4 -x GLIBC_TUNABLES "$jaxpipe" train my.toml --set 'run.folder=runs/My run_2' "${resume[@]}" &
ranks=$!
stopping=''
# The ranks save after their step, and stop.
trap 'stopping=yes; kill -USR1 "$ranks" 2> /dev/null' TERM USR1
trap 'kill -TERM "$ranks" 2> /dev/null' INT HUP
while kill -0 "$ranks" 2> /dev/null; do wait "$ranks"; done
wait "$ranks"
code=$?
find_newest
# Exit code 0 may also mean a requested stop, or an mpirun that has lost a host.
if (( code == 0 )) && [[ "$newest" != "$last" ]]; then
  if [[ -n "$stopping" ]]; then code=143; else code=1; fi
fi
exit "$code"
