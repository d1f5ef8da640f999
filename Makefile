# `make` alone prints the list. Set-up is part of the targets: .venv is made when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
SHELL_SCRIPTS := entrypoint.sh .ci/run $(wildcard container/*.sh scripts/*.sh tests/container/*.sh benchmarks/peers/*.sh)

FAST := not learning and not slow
OLDER_TORCH := 2.7.1 2.6.0# for older drivers and cards; docker-bake.hcl

.DEFAULT_GOAL := help
.PHONY: help preflight up down shell logs doctor lab train test test-all bench lint docs links image images sbom lock audit

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-9s %s\n' "$$name" "$$text"; done

preflight: ## will a container start on this host, and get the GPU?
	@scripts/preflight

up: ## bring the workbench up: prints address, token and ssh line (without an engine: make lab)
	@scripts/up.sh

down: ## stop and remove the workbench; code/ and models/ stay
	@docker compose down

shell: ## a shell in the workbench
	@docker compose exec workbench bash --login

logs: ## what the workbench's services say, until Ctrl-C
	@docker compose logs --follow --timestamps

doctor: ## can the GPU be used? In the workbench where it runs, else in .venv
	@if [ -n "$$(docker compose ps --quiet 2>/dev/null)" ]; then docker compose exec workbench rl doctor; \
		else $(MAKE) --no-print-directory .venv/ready >&2 && $(BIN)/rl doctor; fi

lab: .venv/ready ## Jupyter Lab and TensorBoard without a container
	@scripts/lab.sh

train: .venv/ready ## solve CartPole by DQN
	@$(BIN)/python scripts/train_dqn.py

test: .venv/ready-to-test lint ## lint, types, and all fast tests; the container's where an engine runs (≤ 30 minutes)
	@if docker info >/dev/null 2>&1; then $(MAKE) --no-print-directory image; \
		else echo "make test: no container engine runs here, so the image's tests are skipped"; fi
	$(BIN)/pytest -n auto --cov --cov-fail-under=95 --cov-report=term:skip-covered -m "$(FAST)" tests/rl
	@echo "lines of rl/ that only a GPU runs, left out above: $$(grep -r '# GPU only' rl | wc -l)"
	$(BIN)/pytest -n 3 --dist loadfile -m "$(FAST)" --ignore tests/rl tests

test-all: test ## make test, then the learning gates, every variant's image and whatever else takes long
	@if docker info >/dev/null 2>&1; then $(MAKE) --no-print-directory images; fi
	$(BIN)/pytest -m "learning or slow" tests

bench: .venv/ready-to-test .venv-peers/ready .venv-pufferlib/ready ## the peers and rl side by side: the ratio table (≤ 40 minutes)
	$(BIN)/python benchmarks/side_by_side.py

lint: .venv/ready-to-test ## ruff, mypy, shellcheck; of the Dockerfiles and the GitHub workflows too
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 --follow-imports=silent rl/doctor scripts/preflight  # Ubuntu 22.04's, on bare hosts
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/hadolint Dockerfile deploy/derived/Dockerfile
	$(BIN)/jactionlint --strict-exit
	$(BIN)/zizmor --offline --no-progress --quiet .github

# -E: without it a page that has not changed keeps its warnings to itself, and a second try passes.
docs: .venv/ready-to-test ## the pages, two of them written anew from rl/doctor, as a site in build/docs
	@$(BIN)/python docs/generate.py
	@$(BIN)/sphinx-build -q -E -n -W --keep-going -d build/doctrees docs build/docs
	@echo "The pages are in $(CURDIR)/build/docs/index.html"

links: .venv/ready-to-test ## do the pages' links to other sites still lead somewhere? Needs a network
	@$(BIN)/sphinx-build -q -E -W --keep-going -d build/doctrees -b linkcheck docs build/links

image: ## build the image of the current variant (BASE_IMAGE=NAME takes another base)
	@scripts/image.sh

images: ## build the image of every variant: torch 2.13, 2.7, 2.6
	@scripts/image.sh default

sbom: .venv/ready-to-test ## what is in the images on this machine, as SPDX into build/
	@scripts/sbom.sh

lock: .venv/ready-to-test ## resolve requirements.txt into the hashed locks of the images
	@for torch in $$(sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements.txt) $(OLDER_TORCH); do \
		sed "s/^torch==[^ ]*/torch==$$torch/" requirements.txt | $(BIN)/uv pip compile - --quiet --universal \
			--python-version 3.11 --fork-strategy fewest --generate-hashes --custom-compile-command "make lock" \
			--output-file locks/torch-$${torch%.*}.txt || exit 1; \
	done

# --strict: a package that the index does not know is an error too, and not a line that nobody reads.
audit: .venv/ready-to-test ## known vulnerabilities of what the locks hold; locks/exceptions.txt has those passed over
	@ignored=$$(sed -n 's/^\([A-Z][^ ]*\) .*/--ignore-vuln \1/p' locks/exceptions.txt); failed=0; \
		for lock in locks/torch-*.txt; do echo "$$lock"; \
		$(BIN)/pip-audit --strict --progress-spinner off --require-hashes --disable-pip $$ignored --requirement $$lock \
			|| failed=1; done; exit $$failed

# torch first and alone: pip then takes a build that lies on this machine, where there is one.
.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is older than Python 3.11; with another: make PYTHON=python3.12 …" >&2; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv
	@echo "Setting up .venv; the first time takes some minutes."
	@$(BIN)/pip install --quiet "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)"
	@$(BIN)/pip install --quiet --requirement requirements.txt --editable .
	@touch $@

.venv/ready-to-test: .venv/ready requirements-dev.txt
	@$(BIN)/pip install --quiet --requirement requirements-dev.txt
	@touch $@

.venv-peers/ready: benchmarks/peers/requirements.txt
	@[ -x .venv-peers/bin/pip ] || $(PYTHON) -m venv .venv-peers
	@echo "Setting up .venv-peers; the first time takes some minutes."
	@.venv-peers/bin/pip install --quiet "$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' $<)"
	@build=$$(.venv-peers/bin/pip freeze | grep '^torch=='); \
		.venv-peers/bin/pip install --quiet --requirement $<; \
		[ "$$(.venv-peers/bin/pip freeze | grep '^torch==')" = "$$build" ] || \
		{ echo "make: the peers brought another build of torch than $$build" >&2; exit 1; }
	@touch $@

.venv-pufferlib/ready: benchmarks/peers/pufferlib.sh
	@echo "Building PufferLib's CartPole in .venv-pufferlib; about two minutes."
	@if $< $(PYTHON) .venv-pufferlib; then touch $@; \
		else echo "make bench: PufferLib could not be built here, so its lines of the table stay empty"; fi
