#!/bin/bash -p
# The container's start: identity, folders, secrets, environment, self-check; then the command, or the services.
# What is written outside the mounts goes to /tmp/rl. (-p: without BASH_ENV, which takes the secrets away from jobs.)
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "entrypoint: $*"
    exit 1
}

# -- As root: step down to the owner of the work folder. An empty folder of root's, as the engine makes one for a mount
# that was not there, is handed to uid 1000; a folder with files in it is the owner's business.
if [ "$(id -u)" = 0 ]; then
    folder=/workspace/code
    [ -e "$folder" ] || folder=/workspace
    hand_over() { [ -O "$1" ] && [ -z "$(ls -A "$1")" ] && chown "$2" "$1" 2>/dev/null || true; }
    hand_over "$folder" 1000:1000
    owner=$(stat -c %u "$folder") group=$(stat -c %g "$folder")
    hand_over /workspace/models "$owner:$group"
    [ "$owner" -ge 500 ] || fail "started as root, and $folder belongs to uid $owner: not stepping down to that." \
        "On the host: chown -R 1000:1000 the folder"
    drop=(setpriv --reuid "$owner" --regid "$group" --clear-groups --inh-caps=-all)
    "${drop[@]}" true 2>/dev/null || fail "started as root, without the capabilities to step down to uid $owner, the" \
        "owner of $folder: start it with --user $owner:$group"
    for stream in /dev/stdout /dev/stderr; do # the services open them by name
        if [ -p "$stream" ] || [ -c "$stream" ]; then chown "$owner" "$stream" 2>/dev/null || true; fi
    done
    exec "${drop[@]}" "$0" "$@"
fi

# -- Identity: the login name is rl under any uid. libnss-extrausers reads these files, and refuses ids below 500.
uid=$(id -u) gid=$(id -g)
[ "$uid" -ge 500 ] || fail "uid $uid is a system user's: start with a uid of 500 or more, as in" \
    "--user \"\$(id -u):\$(id -g)\""
mkdir -p /tmp/rl 2>/dev/null && [ -w /tmp/rl ] || fail "cannot write /tmp/rl: with --read-only give --tmpfs /tmp"
rm -f /tmp/rl/started /tmp/rl/command /tmp/rl/gpu_worked # of an earlier start of this container
echo "rl:*:$uid:$((gid < 500 ? 1000 : gid)):rl:/tmp/rl/home:/bin/bash" >/tmp/rl/passwd
echo "rl:*:$gid:" >/tmp/rl/group

# -- Folders: the work folder, the models, and the state, which is kept where the models are.
writable() { mkdir -p "$1" 2>/dev/null && [ -w "$1" ]; }
work=/workspace/code state=/workspace/.state
locked=()
if ! writable "$RL_MODELS_DIR"; then
    locked+=("$RL_MODELS_DIR")
    export RL_MODELS_DIR=/tmp/rl/models
    mkdir -p "$RL_MODELS_DIR"
fi
if ! writable "$work"; then
    locked+=("$work")
    if [ -z "$(ls -A "$work" 2>/dev/null)" ]; then work=/tmp/rl/code; fi # a read-only folder with files stays in use
    mkdir -p "$work" 2>/dev/null || true
fi
mountpoint -q "$state" || state=$RL_MODELS_DIR/.state
if ! writable "$state"; then
    locked+=("$state")
    state=/tmp/rl/state-of-this-container
    mkdir -p "$state"
fi
chmod 0700 "$state" 2>/dev/null || true
known=
if [ -d "$state/home" ]; then known=1; fi
mkdir -p "$state/home/.ssh" "$state/ssh"
ln -sfn "$state" /tmp/rl/state
ln -sfn "$state/home" /tmp/rl/home
ln -sfn "$work" /tmp/rl/work
if [ -w "$work" ] && [ -z "$(ls -A "$work")" ]; then cp -r /opt/rl/templates/. "$work"; fi
if [ "$PWD" = /workspace ]; then cd "$work"; fi

if [ ${#locked[@]} -gt 0 ]; then
    say "uid $uid cannot write ${locked[*]}: what is made there is lost with the container. To keep it, on the host:"
    # shellcheck disable=SC2016  # to be typed as it stands
    say '    mkdir -p code models && docker run --user "$(id -u):$(id -g)" … -v ./code:/workspace/code -v ./models:/workspace/models'
fi

# -- The user's own packages: a venv in the state folder, which sees the image's, may override them and outlives the
# container. Made for another Python or torch it would break this one, so it is set aside then.
packages=$state/packages made_for=$(cat /opt/rl/made_for)
if [ -d "$packages" ] && [ "$(cat "$packages/made_for" 2>/dev/null)" != "$made_for" ]; then
    aside=$packages-for-$(cat "$packages/made_for" 2>/dev/null || date +%s)
    own=$(find "$packages"/lib/python*/site-packages -name '*.dist-info' -printf '%f\n' 2>/dev/null |
        sed -E 's/-([^-]*)\.dist-info$/==\1/' | sort | xargs) || true
    rm -rf "$aside" && mv "$packages" "$aside"
    say "This image has ${made_for/-/, }: the packages that you installed for another one are set aside in $aside."
    if [ -n "$own" ]; then say "To install them again:  pip install $own"; fi
fi
if [ ! -d "$packages" ]; then
    if /opt/venv/bin/python -m venv --without-pip "$packages" && echo "$made_for" >"$packages/made_for"; then
        site=$(echo "$packages"/lib/python*/site-packages)
        echo "import site; site.addsitedir('/opt/venv/lib/${site#"$packages"/lib/}')" >"$site/image.pth"
    else
        say "no venv can be made in $state: pip install will not work in here"
        rm -rf "$packages"
    fi
fi
ln -sfn "$packages" /tmp/rl/packages

# -- Secrets: files for the services only; then they leave the environment.
umask_before=$(umask)
umask 077
token=${JUPYTER_TOKEN:-} origin=given
if [ -z "$token" ] && [ -n "${JUPYTER_TOKEN_FILE:-}" ]; then
    token=$(cat "$JUPYTER_TOKEN_FILE") || fail "JUPYTER_TOKEN_FILE=$JUPYTER_TOKEN_FILE cannot be read by uid $uid"
fi
if [ -z "$token" ]; then
    [ -s "$state/token" ] || python -c 'import secrets; print(secrets.token_hex(24))' >"$state/token"
    token=$(cat "$state/token") origin=generated
fi
printf '%s' "$token" >/tmp/rl/token
{
    printf '%s\n' "${SSH_PUBLIC_KEY:-}"
    find -L /etc/ssh/authorized_keys -type f -exec awk 1 {} + 2>/dev/null || true
} >"$state/home/.ssh/given_keys"
printf '%s' "${JUPYTER_PASSWORD_HASH:-}" >/tmp/rl/password
umask "$umask_before"
unset JUPYTER_TOKEN JUPYTER_TOKEN_FILE JUPYTER_PASSWORD_HASH SSH_PUBLIC_KEY

# -- The host key, by which clients know this workbench again: made once, and never put in the place of another.
host_key=$state/ssh/ssh_host_ed25519_key
if ! [ -s "$host_key" ]; then
    rm -f "$host_key"
    (umask 077 && ssh-keygen -q -t ed25519 -N '' -C rl -f "$host_key")
    if [ -n "$known" ]; then
        say "$host_key was gone, so SSH has a new host key: clients that know the old one will warn of it. To forget the" \
            "old one:  ssh-keygen -R '[HOST]:PORT'"
    fi
fi
ssh-keygen -y -P '' -f "$host_key" >/tmp/rl/host_key.pub 2>/tmp/rl/host_key.error || fail "the SSH host key $host_key" \
    "cannot be used: $(head -n 1 /tmp/rl/host_key.error). Restore it (mode 0600, of uid $uid), or remove it to have a new one made"

# -- Where Jupyter is served.
tr -s / <<<"/${JUPYTER_BASE_URL:-}/" >/tmp/rl/base_url
for port in JUPYTER_PORT SSHD_PORT; do
    [[ ${!port} =~ ^[0-9]+$ ]] && [ "${!port}" -ge 1024 ] && [ "${!port}" -le 65535 ] ||
        fail "$port=${!port}: must be a number from 1024 to 65535"
done

# -- Environment, for ssh sessions: all that is exported here, but what a session has of its own.
(unset PWD OLDPWD SHLVL TERM && export -p) >/tmp/rl/environment
printf '%s' "$PATH" >/tmp/rl/path

# -- Self-check; for a command the quick one, since that may have its own import of torch to wait for.
check=0
if [ "${GPU_CHECK:=warn}" != warn ]; then
    /etc/rl/self_check.sh || check=$?
    if [ "$check" -gt 1 ]; then # 1: it works, though less well; the start card says how
        cat /tmp/rl/doctor.txt >&2 2>/dev/null || true
        exit "$check"
    fi
elif [ $# -gt 0 ]; then
    /etc/rl/self_check.sh --quick || true
fi

# -- The command, or the services.
if [ $# -eq 0 ]; then
    exec /etc/rl/serve.sh "$origin"
fi
[[ $1 != -* ]] || fail "$1 stands after the image's name, so it is no option of docker run: put it before"
touch /tmp/rl/command # no services to be healthy
cat /tmp/rl/greeting >&2
exec "$@"
