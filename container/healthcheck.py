"""Healthy: started, Jupyter answers to its token, sshd listens, and a GPU that once worked still does.

A container that only runs a command has no services. Whoever lost the GPU learns why here and in the greeting of the
next login; running jobs go on.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

FILES = Path("/tmp/rl")


def gpu() -> str:
    """What happened to the GPU that worked, or nothing."""
    marker = FILES / "gpu_worked"
    if not marker.exists():
        return ""
    try:
        asked = subprocess.run(["rl", "doctor", "--quick", "--json"], capture_output=True, text=True, timeout=8)
    except subprocess.TimeoutExpired:
        return "the NVIDIA driver has not answered for 8 s"
    lost = asked.returncode == 3
    if lost != ('"status": "unusable"' in (FILES / "doctor.json").read_text()):
        subprocess.run(["/etc/rl/self_check.sh", "--quick"], capture_output=True, timeout=8)  # for the next login
    if not lost:
        return ""
    return f"{json.loads(asked.stdout)['verdict']['line']} (it last worked at {marker.read_text().strip()})"


def services() -> str:
    """Which service does not answer, or nothing."""
    if not (FILES / "started").exists():
        return "the self-check is still running"
    token = (FILES / "token").read_text().strip()
    jupyter, ssh = os.environ["JUPYTER_PORT"], os.environ["SSHD_PORT"]
    url = f"http://127.0.0.1:{jupyter}{(FILES / 'base_url').read_text().strip()}api/status"
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # HTTP_PROXY is for the world outside
    try:
        direct.open(request, timeout=5).close()
    except OSError as error:
        return f"Jupyter on {jupyter}: {error}"
    # Not by a connection: sshd would log each one as broken off.
    listen, port = "0A", f"{int(ssh):04X}"
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    if not any(row[1].endswith(f":{port}") and row[3] == listen for row in rows):
        return f"sshd does not listen on {ssh}"
    return ""


if not (FILES / "command").exists() and (fault := services()):
    sys.exit(fault)
sys.exit(gpu() or 0)
