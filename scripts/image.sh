#!/usr/bin/env bash
# `make image` and `make images`: builds targets of docker-bake.hcl, by default the current variant's.
# BASE_IMAGE=NAME takes another base.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
docker buildx bake --file docker-bake.hcl --progress=plain "${@:-torch2_13}" 2>&1 | tee "$log" || {
    if grep -q 'failed to resolve source metadata' "$log"; then
        base=${BASE_IMAGE:-$(sed -n 's/.*failed to resolve source metadata for \([^@ ]*\)[@:].*/\1/p' "$log" | head -1)}
        echo "image.sh: the base image ${base%@*} cannot be pulled from here; with another one, of a mirror for instance:" \
            "BASE_IMAGE=NAME make image" >&2
    fi
    exit 1
}
