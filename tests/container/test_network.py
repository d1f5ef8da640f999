"""The workbench among other machines: behind a reverse proxy, on other ports, known by its host key, and its log."""

import json
import re
import shutil
import socket
import subprocess
import sys

import pytest
from workbench import IMAGE, docker, http, kernel_runs, run, wait_until

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; "" close; }}
    server {{
        listen 127.0.0.1:{port};
        location /team/lab/ {{
            proxy_pass http://127.0.0.1:{to};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
        }}
    }}
}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def behind_nginx(launch, tmp_path):
    """A workbench under /team/lab behind nginx, and where nginx serves it."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert nginx, "this test needs nginx: apt-get install nginx-light"
    workbench = launch("-e", "JUPYTER_TOKEN=given-token", "-e", "JUPYTER_BASE_URL=team/lab")
    port = free_port()
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, port=port, to=workbench.port(8888)))
    with subprocess.Popen([nginx, "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")]) as server:
        wait_until(lambda: answers(port), 10, "nginx")
        yield workbench, f"127.0.0.1:{port}/team/lab"
        server.terminate()


def test_behind_a_reverse_proxy_pages_notebooks_and_tensorboard_work_under_its_path(behind_nginx):
    workbench, address = behind_nginx
    assert http(f"http://{address}/lab", "given-token")[0] == 200
    assert kernel_runs(workbench, "print(6 * 7)", address=address) == "42\n"
    assert "TensorBoard" in http(f"http://{address}/tensorboard/", "given-token")[1]
    assert workbench.state("Health.Status") == "healthy"
    assert "path /team/lab/" in workbench.log


def test_other_ports_are_served_checked_and_shown(launch):
    workbench = launch("-e", "JUPYTER_PORT=9999", "-e", "SSHD_PORT=2200", "-e", "JUPYTER_TOKEN=t", ports=False)
    assert workbench.exec("curl", "-V", check=False).returncode  # no curl in the image: asked by Python
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9999/api/status?token=t').status)"
    assert workbench.python(asked) == "200"
    assert "port 2200" in workbench.log
    assert workbench.state("Health.Status") == "healthy"


@pytest.mark.parametrize("port", ["80", "http", "99999"])
def test_a_port_that_cannot_be_is_refused_with_the_range(port):
    done = docker("run", "--rm", "-e", f"JUPYTER_PORT={port}", IMAGE, "true", check=False)
    assert done.returncode == 1
    assert f"JUPYTER_PORT={port}: must be a number from 1024 to 65535" in done.stderr


def test_a_hashed_password_lets_in_by_the_login_page_and_is_in_no_job(launch):
    made = "from jupyter_server.auth import passwd; print(passwd('correct horse'))"
    first = launch("-e", "JUPYTER_TOKEN=t")
    hashed = first.python(made)
    workbench = launch("-e", f"JUPYTER_PASSWORD_HASH={hashed}")
    page = http(workbench.url("/login"))
    assert page[0] == 200
    assert "password" in page[1].lower()
    assert login(workbench, "wrong horse") != 302
    assert login(workbench, "correct horse") == 302
    assert "argon2" not in workbench.exec("bash", "-c", "env").stdout
    assert "argon2" not in kernel_runs(workbench, "import os; print(os.environ)", token=workbench.token)


def login(workbench, password):
    """Status of the answer to the login form."""
    program = (
        "import http.cookiejar, re, sys, urllib.parse, urllib.request as u\n"
        "class No(u.HTTPRedirectHandler):\n"
        "    def redirect_request(self, *_): return None\n"
        "opener = u.build_opener(u.HTTPCookieProcessor(http.cookiejar.CookieJar()), No, u.ProxyHandler({}))\n"
        "page = opener.open(sys.argv[1]).read().decode()\n"
        'xsrf = re.search(r\'name="_xsrf" value="([^"]+)"\', page).group(1)\n'
        "form = urllib.parse.urlencode({'_xsrf': xsrf, 'password': sys.argv[2]}).encode()\n"
        "try: print(opener.open(sys.argv[1], form).status)\n"
        "except u.HTTPError as error: print(error.code)\n"
    )
    done = run(sys.executable, "-c", program, workbench.url("/login"), password)
    return int(done.stdout)


def test_the_start_card_shows_the_host_key_that_ssh_meets(launch):
    workbench = launch()
    scanned = run("ssh-keyscan", "-p", str(workbench.port(2222)), "127.0.0.1").stdout
    key = re.search(r"ssh-ed25519 (\S+)", scanned).group(0)
    assert f"[HOST]:PORT {key}" in workbench.log
    fingerprint = run("ssh-keygen", "-lf", "-", input=scanned).stdout.split()[1]
    assert fingerprint in workbench.log


def test_a_lost_host_key_is_made_anew_and_said_and_a_broken_one_is_left_alone(launch, folders):
    first = launch(*folders.arguments)
    assert "was gone" not in first.log
    first.exec("rm", "/tmp/rl/state/ssh/ssh_host_ed25519_key")
    docker("restart", first.name)
    first.until_healthy()
    assert "ssh_host_ed25519_key was gone, so SSH has a new host key" in first.log
    assert "ssh-keygen -R" in first.log
    first.exec("bash", "-c", "echo broken >/tmp/rl/state/ssh/ssh_host_ed25519_key")
    docker("restart", first.name)
    wait_until(lambda: first.state("Status") == "exited", 20, "the refusal")
    assert "cannot be used" in first.log
    assert (folders.models / ".state/ssh/ssh_host_ed25519_key").read_text() == "broken\n"


def test_ssh_audit_finds_nothing_weak(workbench):
    """But for two key exchanges that are kept for clients older than OpenSSH 8.5, which have no post-quantum one."""
    audit = run(sys.executable, "-m", "ssh_audit", "-jj", "-p", str(workbench.port(2222)), "127.0.0.1", check=False)
    report = json.loads(audit.stdout)
    found = {
        (entry["algorithm"], level, note)
        for kind in ("kex", "key", "enc", "mac")
        for entry in report[kind]
        for level in ("fail", "warn")
        for note in entry["notes"].get(level, ())
    }
    accepted = "does not provide protection against post-quantum attacks"
    assert {f for f in found if not (f[0].startswith("curve25519") and f[2] == accepted)} == set()


def test_the_log_of_a_healthy_start_has_no_warning_and_a_time_on_every_line_of_the_services(launch):
    workbench = launch("-e", "JUPYTER_TOKEN=t")
    assert workbench.ssh("true", check=False).returncode == 0
    lines = workbench.log.splitlines()
    assert [line for line in lines if re.search(r"\[[WEC] |warn|error|traceback|deprecat", line, re.IGNORECASE)] == []
    of_services = [line for line in lines if re.search(r"sshd|supervisord|ServerApp|LabApp|spawned|success:", line)]
    assert len(of_services) > 10
    assert [line for line in of_services if not re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", line)] == []
