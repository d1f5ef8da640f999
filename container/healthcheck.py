"""Healthy means: Jupyter answers to its token, and sshd greets. A container that only runs a command has no services."""

import socket
import sys
import urllib.request
from pathlib import Path

if not Path("/tmp/rl/supervisord.pid").exists():
    sys.exit(0)

token = Path("/tmp/rl/token").read_text().strip()
request = urllib.request.Request("http://127.0.0.1:8888/api/status", headers={"Authorization": f"token {token}"})
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # HTTP_PROXY is for the world outside
try:
    direct.open(request, timeout=5).close()
except OSError as error:
    sys.exit(f"Jupyter on 8888: {error}")

try:
    with socket.create_connection(("127.0.0.1", 2222), timeout=5) as connection:
        greeting = connection.recv(64)
except OSError as error:
    sys.exit(f"sshd on 2222: {error}")
if not greeting.startswith(b"SSH-2.0-"):
    sys.exit(f"sshd on 2222 greets with {greeting!r}")
