#!/usr/bin/env bash
# What CHANGELOG.md says of a release: scripts/release_notes.sh v0.1.0. Fails where the tag is not that of the package's
# version.
set -euo pipefail
cd "$(dirname "$0")/.."

tag=${1:?usage: scripts/release_notes.sh TAG}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
if [ "$tag" != "v$version" ]; then
    echo "release_notes.sh: the tag is $tag, but pyproject.toml says version $version: tag v$version, or change it" >&2
    exit 1
fi
notes=$(awk -v title="## $version" '/^## / { here = $0 == title; next } here' CHANGELOG.md | sed '/./,$!d')
if [ -z "$notes" ]; then
    echo "release_notes.sh: CHANGELOG.md has no section '## $version', or nothing in it; write what changed" >&2
    exit 1
fi
printf '%s\n' "$notes"
