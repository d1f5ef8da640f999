#!/usr/bin/env bash
# Checks and times, in under 4 minutes, what only a GPU can show: eager = graph = compile, resume, precision, copies.
# PYTHON=… takes another interpreter than that of .venv; further arguments go to benchmarks/gpu.py.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$(command -v "$python")" ] || { echo "gpu_check: no $python here: make train, or give PYTHON=…" >&2; exit 1; }
export PYTHONPATH=$PWD
failed=0
phase() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

phase "the GPU"
GPU_CHECK=strict "$python" -m rl doctor || { echo "gpu_check: no usable GPU, see above" >&2; exit 1; }
phase "modes, resume and speed"
"$python" benchmarks/gpu.py "$@" || failed=1
phase "precision"
"$python" -m rl bench amp || failed=1
phase "copies"
"$python" benchmarks/copies.py --quick || failed=1
phase "the buffers in flight, on the GPU itself"
"$python" -m pytest -q -p no:cacheprovider tests/rl/test_staging.py || failed=1
phase "done"
exit "$failed"
