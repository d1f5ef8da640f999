#!/usr/bin/env bash
# Runs the services until the container is stopped; with a terminal, also a shell, and until that is left.
set -euo pipefail

jobs_of_the_user() { # everything but the services, shells and terminal multiplexers, which would take their jobs along
    ps -eo pid=,comm= | awk '$2 !~ /^(tini|docker-init|bash|sh|serve.sh|supervisord|sshd.*|jupyter-lab|tensorboard|tmux.*|ps|awk|sleep)$/ { print $1 }'
}

# `docker stop` signals process 1 only: training gets its SIGTERM, and time to save, before the services go.
stop() {
    trap '' TERM INT HUP
    local pids deadline=$((SECONDS + ${STOP_GRACE:-8}))
    pids=$(jobs_of_the_user)
    if [ -n "$pids" ]; then
        # shellcheck disable=SC2086  # one word per process
        kill -TERM $pids 2>/dev/null || true
        # shellcheck disable=SC2086
        while [ "$SECONDS" -lt "$deadline" ] && ps -p "${pids//$'\n'/,}" -o stat= | grep -qv Z; do sleep 0.1; done
    fi
    if [ -n "${shell:-}" ]; then kill -HUP "$shell" 2>/dev/null || true; fi
    kill -TERM "$supervisor" 2>/dev/null || true
    wait "$supervisor" || true
}
trap 'stop; exit 0' TERM INT HUP

if [ -t 0 ]; then
    # In a session of its own: Ctrl-C in the shell is not meant for the services, nor are their lines for the shell.
    setsid supervisord -c /etc/rl/supervisord.conf </dev/null >/tmp/rl/services.log 2>&1 &
    supervisor=$!
    # In the background, for then the trap runs at once; with the signals that a background job would ignore.
    env --default-signal=INT,QUIT bash --login <&0 &
    shell=$!
    status=0
    wait "$shell" || status=$?
    shell=
    stop
    exit "$status"
fi

supervisord -c /etc/rl/supervisord.conf </dev/null &
supervisor=$!
wait "$supervisor"
