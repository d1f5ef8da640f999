#!/usr/bin/env bash
# Runs the doctor and keeps what it says: doctor.json, doctor.txt and, for logins, its verdict in greeting. gpu_worked
# holds the last time at which a GPU was usable: by it the doctor tells a GPU that was lost from one that never worked.
# Exits as `rl doctor` does.
set -euo pipefail

case ${GPU_CHECK:=warn} in
warn | strict) ;;
off)
    echo "GPU check: off" | tee /tmp/rl/doctor.txt >/tmp/rl/greeting
    exit 0
    ;;
*)
    echo "GPU_CHECK=$GPU_CHECK: must be warn, strict or off" >&2
    exit 2
    ;;
esac

status=0
rl doctor "$@" --save-facts /tmp/rl/facts.json --json >/tmp/rl/doctor.json || status=$?
if [ "$status" -eq 4 ]; then # there are no facts to judge, or those of an earlier check
    echo "GPU check: the doctor itself failed; \`rl doctor\` shows the error" | tee /tmp/rl/doctor.txt >/tmp/rl/greeting
    exit 4
fi
rl doctor --facts /tmp/rl/facts.json >/tmp/rl/doctor.txt || true
head -n 1 /tmp/rl/doctor.txt >/tmp/rl/greeting
if grep -q '"cuda_available": true' /tmp/rl/doctor.json; then date -u +%FT%TZ >/tmp/rl/gpu_worked; fi
exit "$status"
