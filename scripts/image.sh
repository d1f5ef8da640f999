#!/usr/bin/env bash
# `make image`: builds the image of the current variant. BASE_IMAGE=NAME takes another base.
set -euo pipefail
cd "$(dirname "$0")/.."

image=pytorch-cuda-rl:torch2.13
arguments=(--build-arg "RL_IMAGE=$image" --build-arg "RL_LOCK_SHA256=$(sha256sum locks/torch-2.13.txt | cut -d' ' -f1)")
if [ -n "${BASE_IMAGE:-}" ]; then arguments+=(--build-arg "BASE_IMAGE=$BASE_IMAGE"); fi
base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' Dockerfile)}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
docker build --progress=plain "${arguments[@]}" --tag "$image" --tag pytorch-cuda-rl:latest . 2>&1 | tee "$log" || {
    if grep -q 'failed to resolve source metadata' "$log"; then
        echo "image.sh: the base image ${base%@*} cannot be pulled from here; with another one, of a mirror for instance:" \
            "BASE_IMAGE=NAME make image" >&2
    fi
    exit 1
}
