#!/usr/bin/env bash
# `make up`: brings the workbench up and says how to reach it. Where no engine runs, `make lab` instead.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! reason=$(docker info 2>&1 >/dev/null); then
    echo "No container engine answers here (${reason##*$'\n'}), so this starts Jupyter Lab and TensorBoard from .venv." >&2
    exec make --no-print-directory lab
fi
docker compose version >/dev/null 2>&1 || {
    echo "up.sh: this engine has no compose plugin: install docker-compose-plugin (Debian, Ubuntu: docker-compose)" >&2
    exit 1
}

# root works as uid 1000 in the container, and hands it the folders that are made here.
RL_UID=$(id -u) RL_GID=$(id -g)
if [ "$RL_UID" = 0 ]; then RL_UID=1000 RL_GID=1000; fi
export RL_UID RL_GID
for folder in code models; do
    [ -e "$folder" ] || { mkdir "$folder" && chown "$RL_UID:$RL_GID" "$folder"; }
done

if [ -z "${SSH_PUBLIC_KEY:-}" ]; then SSH_PUBLIC_KEY=$(cat ~/.ssh/*.pub 2>/dev/null || true); fi
export SSH_PUBLIC_KEY

compose=(docker compose -f docker-compose.yml)
runtimes=$(docker info --format '{{range $name, $runtime := .Runtimes}}{{$name}} {{end}}')
if [[ " $runtimes" != *" nvidia "* ]] && ! command -v nvidia-container-runtime-hook >/dev/null; then
    echo "This engine has no NVIDIA runtime: starting without a GPU."
    compose+=(-f docker-compose.cpu.yml)
fi
if [ "${BIND:-127.0.0.1}" != 127.0.0.1 ]; then
    echo "Warning: BIND=$BIND opens Jupyter and SSH to the network; Jupyter's token travels unencrypted." >&2
fi

# A port that this workbench has already stays its own; else the first free one, unless one was asked for.
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
free_port() {
    local name=$1 inside=$2 port=$3 mapped
    if [ -n "${!name:-}" ]; then return; fi
    mapped=$("${compose[@]}" port workbench "$inside" 2>/dev/null || true)
    if [ -n "$mapped" ]; then port=${mapped##*:}; fi
    while [ -z "$mapped" ] && answers "$port"; do
        echo "Port $port is taken by another program: trying $((port + 1))."
        port=$((port + 1))
    done
    export "$name=$port"
}
free_port JUPYTER_PORT 8888 8888
free_port SSH_PORT 2222 2222

if ! docker image inspect pytorch-cuda-rl:torch2.13 >/dev/null 2>&1; then
    echo "Building the image; the first time takes some minutes."
    scripts/image.sh
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "${compose[@]}" up --detach --wait 2>&1 | tee "$log"; then
    if grep -qE 'port is already allocated|address already in use|ports are not available' "$log"; then
        echo "up.sh: port ${JUPYTER_PORT:-8888} or ${SSH_PORT:-2222} is taken; with others:" \
            "JUPYTER_PORT=8889 SSH_PORT=2223 make up" >&2
    else
        "${compose[@]}" logs --tail 20 >&2 || true
        echo "up.sh: the workbench did not start; its last lines stand above, and make preflight looks at this machine" >&2
    fi
    exit 1
fi

in_workbench=("${compose[@]}" exec -T workbench)
jupyter=$("${compose[@]}" port workbench 8888)
ssh=$("${compose[@]}" port workbench 2222)
query="?token=$("${in_workbench[@]}" cat /tmp/rl/token)"
if [ -n "${JUPYTER_TOKEN:-}" ]; then query=" (with the token you gave)"; fi
if [ "${BIND:-}" = 0.0.0.0 ]; then here=$(hostname); else here=${jupyter%:*}; fi
address=http://$here:${jupyter##*:}$("${in_workbench[@]}" cat /tmp/rl/base_url)
echo
"${in_workbench[@]}" cat /tmp/rl/greeting
echo
echo "  Jupyter Lab   $address$query"
echo "  TensorBoard   ${address}tensorboard/$query"
if [ -n "$SSH_PUBLIC_KEY" ]; then
    echo "  SSH           ssh rl@$here -p ${ssh##*:}"
    echo "                known_hosts: [$here]:${ssh##*:} $("${in_workbench[@]}" cut -d' ' -f1,2 /tmp/rl/host_key.pub)"
else
    echo "  SSH           no key found in ~/.ssh: ssh-keygen -t ed25519, then make up again"
fi
echo "  Your files    code/ and models/, in this folder"
echo "  Next          make shell, and there: python train_dqn.py;  make logs, make doctor, make down"
