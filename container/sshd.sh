#!/usr/bin/env bash
# sshd for supervisord, its log lines with the time that they lack.
set -euo pipefail
exec /usr/sbin/sshd -D -e -f /etc/rl/sshd_config -p "$SSHD_PORT" \
    2> >(while IFS= read -r line; do printf '[%(%F %T)T sshd] %s\n' -1 "$line"; done)
