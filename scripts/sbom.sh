#!/usr/bin/env bash
# `make sbom`: what is in each image on this machine, Debian packages and wheels, as SPDX: build/sbom-VARIANT.spdx.json.
# `scripts/sbom.sh torch2.13` does it for one variant.
set -euo pipefail
cd "$(dirname "$0")/.."

variants=${*:-$(docker images --filter reference='pytorch-cuda-rl:torch*' --format '{{.Tag}}')}
if [ -z "$variants" ]; then
    echo "sbom.sh: there is no image pytorch-cuda-rl:torch… on this machine; build one: make image" >&2
    exit 1
fi
mkdir -p build
export SYFT_CHECK_FOR_APP_UPDATE=false
export SYFT_FILE_METADATA_SELECTION=none # packages, not the digest of each of their many thousand files
for variant in $variants; do
    sbom=build/sbom-$variant.spdx.json
    .venv/bin/syft scan "docker:pytorch-cuda-rl:$variant" --quiet --output "spdx-json=$sbom.part"
    mv "$sbom.part" "$sbom"
    echo "$sbom"
done
