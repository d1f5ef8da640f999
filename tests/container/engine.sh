#!/usr/bin/env bash
# Starts dockerd with the simulated GPU runtime on its PATH, so that `docker run --gpus all` works without a GPU:
#     tests/container/engine.sh        needs root; an engine that runs already without such a runtime is started anew
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
built=/var/tmp/pytorch-cuda-rl-simulated-gpu
log=/var/tmp/pytorch-cuda-rl-dockerd.log

install -d "$built"
for library in libcuda:libcuda libnvidia_ml:libnvidia-ml; do
    soname=${library#*:}.so.1
    cc -shared -fPIC -Wl,-soname,"$soname" -o "$built/$soname" "$here/../stubs/${library%:*}.c"
done
install "$here"/simulated_gpu/* "$built"

accepts_gpus() { tr '\0' '\n' <"/proc/$1/environ" | grep -q "^PATH=.*$built"; }
pid=$(pgrep -x dockerd | head -1 || true)
if [ -n "$pid" ]; then
    if accepts_gpus "$pid"; then exit; fi
    echo "engine.sh: stopping the dockerd that runs, to start it with the simulated GPU runtime"
    if [ "$(ps -o comm= -p 1)" = systemd ]; then systemctl stop docker.socket docker; else kill "$pid"; fi
    while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
fi
PATH=$built:$PATH setsid dockerd >"$log" 2>&1 </dev/null &
for _ in $(seq 120); do
    if docker info >/dev/null 2>&1; then exit; fi
    sleep 0.5
done
tail -20 "$log" >&2
echo "engine.sh: dockerd does not answer after 60 s; the end of $log stands above" >&2
exit 1
