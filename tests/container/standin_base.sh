#!/usr/bin/env bash
# Builds a stand-in for the CUDA base image, for machines whose network has Debian's packages but no image registry:
#     tests/container/standin_base.sh bookworm|trixie     →  image pytorch-cuda-rl-standin:SUITE
# It has what our Dockerfile meets in the true base: the user `ubuntu` of uid 1000, the NVIDIA_* variables, NVIDIA's PATH
# and LD_LIBRARY_PATH, and a libcuda of cuda-compat that must not be found; and, so that apt and pip work behind this
# network, the machine's own package sources and certificates. The Dockerfile knows nothing of either.
set -euo pipefail

suite=${1:-bookworm}
image=pytorch-cuda-rl-standin:$suite
sources=/etc/apt/sources.list.d/debian.sources
made_by=$(sha256sum "$0" | cut -d' ' -f1)
if [ "$(docker image inspect --format '{{.Config.Labels.made_by}}' "$image" 2>/dev/null)" = "$made_by" ]; then
    echo "$image is there already"
    exit
fi
if ! [ -r "$sources" ]; then
    echo "standin_base.sh: needs a Debian machine (no $sources here)" >&2
    exit 1
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mirror=$(sed -n 's/^URIs: *//p' "$sources" | head -1)
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" "$mirror" >"$root.log" 2>&1 ||
    { tail -20 "$root.log" >&2; exit 1; }
rm "$root.log"

# The machine may be of another release than the stand-in: only the suites' names differ.
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
rm -f "$root/etc/apt/sources.list"
sed "s/\b$release\b/$suite/g" "$sources" >"$root/etc/apt/sources.list.d/debian.sources"

variables=()
bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
install -D -m 0644 "$bundle" "$root/etc/standin/certificates.crt"
for name in SSL_CERT_FILE PIP_CERT REQUESTS_CA_BUNDLE; do
    variables+=(--change "ENV $name=/etc/standin/certificates.crt")
done

install -D /dev/null "$root/usr/local/cuda-13.0/compat/libcuda.so.1"
ln -s cuda-13.0 "$root/usr/local/cuda"
chroot "$root" useradd --uid 1000 --create-home --shell /bin/bash ubuntu
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root/etc/hostname" "$root/etc/resolv.conf"

tar --directory "$root" --numeric-owner --create . | docker import "${variables[@]}" \
    --change 'ENV PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64' \
    --change 'ENV NVIDIA_VISIBLE_DEVICES=all' \
    --change 'ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility' \
    --change 'ENV NVIDIA_REQUIRE_CUDA=cuda>=13.0' \
    --change 'CMD ["/bin/bash"]' \
    --change "LABEL made_by=$made_by" \
    - "$image" >/dev/null
echo "built $image"
