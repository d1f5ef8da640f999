"""Jupyter's configuration in the image: what it serves, from where, and to whom."""

import os
from pathlib import Path

c = get_config()  # noqa: F821  (Jupyter puts it there)

WORK = Path("/tmp/rl/work").resolve()
FIRST = "00_start_here.ipynb"

c.ServerApp.ip = "0.0.0.0"  # the container's; `docker run -p` decides who reaches it
c.ServerApp.port = int(os.environ["JUPYTER_PORT"])
# Another than / behind a reverse proxy, which must pass Host and Upgrade.
c.ServerApp.base_url = Path("/tmp/rl/base_url").read_text().strip()
c.ServerApp.port_retries = 0  # another port would not be the published one
c.ServerApp.open_browser = False
c.ServerApp.root_dir = str(WORK)
c.IdentityProvider.token = Path("/tmp/rl/token").read_text().strip()
c.PasswordIdentityProvider.hashed_password = Path("/tmp/rl/password").read_text().strip()  # empty: by token only
c.ServerApp.cookie_secret_file = "/tmp/rl/state/jupyter_cookie_secret"  # a browser stays logged in over a restart

# No packages from the browser, no questions to the network.
c.LabApp.extension_manager = "readonly"
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
if (WORK / FIRST).exists():
    c.LabApp.default_url = f"/lab/tree/{FIRST}"

c.LanguageServerManager.autodetect = False  # none is installed

# Sockets in a folder of the user's own, not TCP ports that everyone on the machine could open.
c.KernelManager.transport = "ipc"
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash", "-l"]}

# TensorBoard has no login of its own: it listens on loopback, and Jupyter passes /tensorboard on to those it knows.
c.ServerProxy.servers = {
    "tensorboard": {
        "command": ["tensorboard", "--logdir", f"{os.environ['RL_MODELS_DIR']}/runs", "--port", "{port}"],
        "timeout": 60,
        "launcher_entry": {"title": "TensorBoard"},
    }
}
