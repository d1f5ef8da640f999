#!/usr/bin/env bash
# Runs the services, and with a terminal also a shell: until the container is stopped, or the shell is left.
set -euo pipefail

# Everything but the services, and the shells and terminal multiplexers, which would take their jobs along.
jobs_of_the_user() {
    ps -eo pid=,stat=,comm= | awk '$2 !~ /^Z/ && $3 !~ /^(tini|docker-init|serve\.sh|bash|sh|supervisord|sshd.*|jupyter-lab|tmux.*|ps|awk|sleep)$/ { print $1 }'
}

# A notebook's kernel lives on after its training has saved itself and let go of the run's lock.
still_saving() {
    local pid lock
    for pid in $(jobs_of_the_user); do
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q ipykernel_launcher || return 0
    done
    for lock in "$RL_MODELS_DIR"/runs/*/.lock; do
        if [ -e "$lock" ] && ! flock --nonblock --shared "$lock" true; then return 0; fi
    done
    return 1
}

# `docker stop` signals process 1 only: training gets its SIGTERM, and time to save, before the services go.
stop() {
    trap '' TERM INT HUP
    local pids deadline=$((SECONDS + ${STOP_GRACE:-8}))
    pids=$(jobs_of_the_user)
    # shellcheck disable=SC2086  # one word per process
    if [ -n "$pids" ]; then kill -TERM $pids 2>/dev/null || true; fi
    while [ "$SECONDS" -lt "$deadline" ] && still_saving; do sleep 0.1; done
    if [ -n "$shell" ]; then kill -HUP "$shell" 2>/dev/null || true; fi
    kill -TERM "$supervisor" 2>/dev/null || true
    wait "$supervisor" || true
}
shell=
trap 'stop; exit 0' TERM INT HUP

# A given token is never shown; a generated one is, but not as an argument, which every process list has.
token="the one you gave"
if [ "$1" = generated ]; then token=$(cat /tmp/rl/token); fi
if [ -t 0 ]; then
    # A session of its own: Ctrl-C in the shell is not meant for the services, and their lines are not for the shell.
    setsid /opt/venv/bin/supervisord -c /etc/rl/supervisord.conf </dev/null >/tmp/rl/services.log 2>&1 &
else
    /opt/venv/bin/supervisord -c /etc/rl/supervisord.conf </dev/null &
fi
supervisor=$!

if [ "${GPU_CHECK:-warn}" = warn ]; then # else the entrypoint has done it
    /etc/rl/self_check.sh &
    wait $! || true
fi
cat <<CARD

$(cat /tmp/rl/doctor.txt)

  Jupyter Lab   port $JUPYTER_PORT of the container, path $(cat /tmp/rl/base_url), token: $token
  SSH           port $SSHD_PORT of the container: ssh rl@HOST -p PORT
                host key $(ssh-keygen -lf /tmp/rl/host_key.pub | cut -d' ' -f2); for known_hosts:
                [HOST]:PORT $(cut -d' ' -f1,2 /tmp/rl/host_key.pub)
  Your files    $(readlink /tmp/rl/work); models in $RL_MODELS_DIR

CARD
touch /tmp/rl/started

if [ "${AUTO_RESUME:-}" = 1 ] && [ -d "$RL_MODELS_DIR/runs" ]; then
    rl resume --all "$RL_MODELS_DIR/runs" >>"$RL_MODELS_DIR/runs/auto-resume.log" 2>&1 &
fi

if ! [ -t 0 ]; then
    wait "$supervisor"
    exit
fi
# In the background, since a trap waits for a command in the foreground; with the signals that bash then switches off.
env --default-signal=INT,QUIT bash --login <&0 &
shell=$!
status=0
wait "$shell" || status=$?
shell=
stop
exit "$status"
