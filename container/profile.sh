# shellcheck shell=sh disable=SC1091
# Login shells, after /etc/profile has replaced PATH by its own.
. /etc/rl/session
if [ -r /tmp/rl/path ]; then PATH=$(cat /tmp/rl/path); fi
