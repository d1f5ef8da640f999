#!/usr/bin/env bash
# PufferLib 3.0.0 with its CartPole in C, in a venv of its own: `pufferlib.sh PYTHON VENV`, where PYTHON makes the venv.
# It asks for NumPy 1, gymnasium 0.29 and gym 0.23, which the other peers do not run with. And pip alone cannot install
# it where only a package index can be reached: its setup.py downloads raylib for the web and Box2D, for environments
# that are not measured here. So pip fetches the sources, setup.py is patched, and only CartPole is built.
set -euo pipefail

python=$1
venv=$(realpath -m "$2")
torch=$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' "$(dirname "$0")/../../requirements.txt")
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT

[ -x "$venv/bin/pip" ] || "$python" -m venv "$venv"
"$venv/bin/pip" install --quiet "$torch"
"$venv/bin/pip" install --quiet numpy==1.26.4 gymnasium==0.29.1 gym==0.23.0 pettingzoo==1.24.1 psutil==7.2.2 \
	pyro-ppl==1.9.2 rich==15.0.0 rich-argparse==1.8.0 nvidia-ml-py==13.615.71 \
	setuptools==84.2.1 wheel==0.48.0 Cython==3.3.1

# fails at setup.py's first download, after it has unpacked the sources; --no-clean leaves them
TMPDIR=$sources "$venv/bin/pip" download --quiet --no-clean --no-binary :all: --no-deps --no-build-isolation \
	--dest "$sources" pufferlib==3.0.0 >"$sources/log" 2>&1 || true
setup=$(find "$sources" -path '*/pufferlib_*/setup.py' | head -n 1)
if [ -z "$setup" ]; then
	cat "$sources/log" >&2
	echo "pufferlib.sh: pip did not fetch the sources of pufferlib 3.0.0: the lines above say why" >&2
	exit 1
fi

# the sources bring raylib for Linux; without nvcc's CUDA the advantages are computed by C++, as on any CPU
sed -i -e "s|^    download_raylib('raylib-5.5_webassembly', '.zip')|    pass|" \
	-e "s|^    download_box2d(.*)|    pass|" \
	-e "s|pufferlib/ocean/\*\*/binding.c|pufferlib/ocean/cartpole/binding.c|" \
	-e 's|^    if shutil.which("nvcc"):|    if False:|' "$setup"
"$venv/bin/pip" install --quiet --no-deps --no-build-isolation "$(dirname "$setup")"
cd "$sources" # importing pufferlib leaves a symbolic link in the current folder
"$venv/bin/python" -c 'import pufferlib.pufferl, pufferlib.ocean.cartpole.binding'
