#!/usr/bin/env bash
# `make lab`: Jupyter Lab and TensorBoard from .venv, on this machine only, until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."

port=${JUPYTER_PORT:-8888}
tensorboard_port=${TENSORBOARD_PORT:-6006}
export RL_MODELS_DIR=$PWD/models PATH=$PWD/.venv/bin:$PATH
JUPYTER_TOKEN=${JUPYTER_TOKEN:-$(python -c 'import secrets; print(secrets.token_hex(24))')}
for taken in "$port" "$tensorboard_port"; do
    if python -c "import socket; socket.create_connection(('127.0.0.1', $taken), 1)" 2>/dev/null; then
        echo "lab.sh: port $taken is taken; with others: JUPYTER_PORT=8889 TENSORBOARD_PORT=6007 make lab" >&2
        exit 1
    fi
done
mkdir -p models/runs

tensorboard --logdir models/runs --port "$tensorboard_port" >/dev/null 2>&1 &
trap 'kill %1' EXIT
echo
echo "  Jupyter Lab   http://127.0.0.1:$port/lab/tree/notebooks/00_start_here.ipynb?token=$JUPYTER_TOKEN"
echo "  TensorBoard   http://127.0.0.1:$tensorboard_port"
echo
options=(--no-browser --ip=127.0.0.1 --port="$port" --ServerApp.port_retries=0 --ServerApp.root_dir="$PWD")
if [ "$(id -u)" = 0 ]; then options+=(--allow-root); fi
JUPYTER_TOKEN=$JUPYTER_TOKEN jupyter lab "${options[@]}" --log-level=WARN
