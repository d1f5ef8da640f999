# The workbench: a CUDA base, PyTorch and the rl package from hash-locked wheels, JupyterLab and sshd, all as a normal
# user; docker-bake.hcl has the variants. Steps are ordered by how often they change. The CUDA libraries are those of
# torch's wheels, so the smallest base will do; the driver's libraries come from the host, through the NVIDIA container
# toolkit, and are never installed here.
ARG BASE_IMAGE=cuda-13

# The bases, by digest. Each has a FROM line of its own, since those are what Dependabot renews: it reads neither ARG nor
# docker-bake.hcl. BASE_IMAGE names one of them, or any other image; what it does not name is not pulled.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701 AS cuda-13
# CUDA 12.4's base ends at Ubuntu 22.04 and Python 3.10; the CUDA libraries are the wheels' anyway.
FROM nvidia/cuda:12.6.3-base-ubuntu24.04@sha256:c87e78933f4c16e3272123bf2f75537306596d0fbaa395a29696a22786e5ee0e AS cuda-12

FROM ${BASE_IMAGE}
ARG TORCH=2.13

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# ca-certificates    git and pip over https
# g++ libc6-dev      torch.compile compiles for the CPU with g++, Triton its launcher with gcc
# git                code comes and goes by it; the run's manifest records the commit
# less nano          git's pager, and an editor over ssh
# libnss-extrausers  gives any `--user UID` a passwd entry, which ssh, git and torch.compile ask for
# openssh-server     logins, scp and sftp
# procps             ps, top, and the watch of `watch -n 1 nvidia-smi`
# python3 -dev -venv the interpreter, the headers that torch.compile and Triton include, and venv
# tini               process 1: passes signals on and reaps orphans
# tmux               jobs that outlive the connection and can be looked at again
# tzdata             TZ=Europe/Berlin means something
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt/lists,sharing=locked \
    rm -f /etc/apt/apt.conf.d/docker-clean \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates g++ git less libc6-dev libnss-extrausers nano openssh-server procps \
        python3 python3-dev python3-venv tini tmux tzdata \
    && rm -f /etc/ssh/ssh_host_* /var/log/apt/* /var/log/dpkg.log

# One venv, exactly what the lock says.
COPY locks/torch-${TORCH}.txt /opt/rl/lock.txt
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --require-hashes --requirement /opt/rl/lock.txt

# constraints.txt: the torch that the image is built around; a pip install that would replace it by another is refused,
# and the doctor tells one that got in all the same, by build-info.json. made_for: whom the user's own packages fit; see
# entrypoint.sh.
RUN torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' /opt/rl/lock.txt) \
    && echo "torch==$torch" >/opt/rl/constraints.txt \
    && echo "$(/opt/venv/bin/python -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')-torch$torch" >/opt/rl/made_for \
    && echo "{\"torch\": \"$torch\", \"variant\": \"torch${torch%.*}\"}" >/opt/rl/build-info.json

# The login name is always rl: uid 1000 here; under another --user the entrypoint writes /tmp/rl/passwd, which is asked
# first. Password `*`: no password fits, and sshd does not take the account for locked, as it does with `!`. Dev
# containers give this account the uid of the caller, and its home, which must be there for that.
# The folders are open to every uid, for containers without a mount, and for named volumes, which begin as their copy.
RUN if getent passwd 1000; then userdel --remove "$(getent passwd 1000 | cut -d: -f1)"; fi \
    && groupadd --gid 1000 rl \
    && useradd --uid 1000 --gid 1000 --home-dir /workspace --no-create-home --shell /bin/bash --password '*' rl \
    && sed -i -E 's/^(passwd|group):.*/\1: extrausers files/' /etc/nsswitch.conf \
    && ln -s /tmp/rl/passwd /tmp/rl/group /var/lib/extrausers/ \
    && install -d -m 1777 /workspace /workspace/code /workspace/models /workspace/.state

# Every variable that does not depend on the start stands here, so that `docker exec` has it too.
# DISABLE_REQUIRE: with a driver too old, the container must start all the same, for the self-check to say so.
# PATH begins with the venv of the user's own packages, which the entrypoint makes; then the image's commands, run by
# whichever python comes first.
ENV PATH=/tmp/rl/packages/bin:/opt/rl/bin:/opt/venv/bin:${PATH} \
    HOME=/tmp/rl/home USER=rl LOGNAME=rl SHELL=/bin/bash LANG=C.UTF-8 \
    BASH_ENV=/etc/rl/bash_env \
    PIP_CONSTRAINT=/opt/rl/constraints.txt \
    JUPYTER_RUNTIME_DIR=/tmp/rl/jupyter \
    TORCHINDUCTOR_CACHE_DIR=/tmp/rl/home/.cache/torchinductor \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics NVIDIA_DISABLE_REQUIRE=1 \
    JUPYTER_PORT=8888 SSHD_PORT=2222 \
    RL_MODELS_DIR=/workspace/models

# The services' configuration.
COPY container/ /etc/rl/
RUN mv /etc/rl/jupyter_server_config.py /etc/rl/labconfig /opt/venv/etc/jupyter/ \
    && sed -i '1i . /etc/rl/session' /etc/bash.bashrc \
    && ln -s /etc/rl/profile.sh /etc/profile.d/rl.sh

# rl last: an edit in it rebuilds only what follows.
COPY scripts/train_*.py notebooks/*.ipynb /opt/rl/templates/
COPY pyproject.toml README.md LICENSE /opt/rl/source/
COPY rl /opt/rl/source/rl
RUN /opt/venv/bin/pip install --no-cache-dir --no-deps --no-build-isolation --no-index /opt/rl/source \
    && rm -r /opt/rl/source \
    && mkdir /opt/rl/bin \
    && for command in $(grep -l '^#!/opt/venv/bin/python' /opt/venv/bin/*); do \
        sed '1s|.*|#!/usr/bin/env python3|' "$command" >"/opt/rl/bin/${command##*/}"; \
    done \
    && chmod +x /opt/rl/bin/* \
    && sed -i 's|^  "python",|  "/usr/bin/env", "python3",|' /opt/venv/share/jupyter/kernels/python3/kernel.json
COPY entrypoint.sh /usr/local/bin/entrypoint.sh

# Recorded in every run's manifest: the image's name, and the lock's hash.
ARG RL_IMAGE=pytorch-cuda-rl
ENV RL_IMAGE=${RL_IMAGE} RL_LOCK=/opt/rl/lock.txt

EXPOSE 8888 2222
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --start-interval=1s \
    CMD ["/opt/venv/bin/python", "-I", "/etc/rl/healthcheck.py"]
# Not /workspace/code: the engine would create that, as root's, inside a mount on /workspace.
WORKDIR /workspace
USER 1000
# A configuration that this sshd does not take stops the build; it wants to see a host key.
RUN mkdir -p /tmp/rl/state/ssh \
    && ssh-keygen -q -t ed25519 -N '' -f /tmp/rl/state/ssh/ssh_host_ed25519_key \
    && /usr/sbin/sshd -t -f /etc/rl/sshd_config \
    && rm -r /tmp/rl
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/usr/local/bin/entrypoint.sh"]
CMD []
