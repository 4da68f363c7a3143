# Two commands on a fresh machine with Python 3.11 or newer: `make demo` and `make test`. `make help` lists all.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
VLLM_VENV ?= .venv-vllm
VLLM_STAMP := $(VLLM_VENV)/prl-stamp
AGENTS_VENV ?= .venv-agents
AGENTS_STAMP := $(AGENTS_VENV)/prl-stamp
PIP := $(PY) -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install -c constraints.txt
# Two workers: the suite then takes half the time on the two cores that it is planned for.
PYTEST_ARGS ?= -n 2 --dist loadfile

WORKSPACE := core/prl-core core/prl-train plugins/prl-renderer-qwen plugins/prl-engine-local
EDITABLE := -e "core/prl-core[client,fast]" -e core/prl-train -e plugins/prl-renderer-qwen -e plugins/prl-engine-local
# All others: only tests, lint and dist need them.
OTHERS := $(filter-out $(WORKSPACE),$(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml contrib/*/pyproject.toml)))
ALL_DISTS := $(WORKSPACE) $(OTHERS)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench docs dist vllm-env agents-env clean

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(STAMPS)/run  ## install, train a small model on a tool game, say where the outputs are
	$(VENV)/bin/prl rl -c docs/examples/quickstart.toml

test: $(STAMPS)/test  ## install what tests need and run every test
	@$(MAKE) --no-print-directory vllm-env || \
	  echo "make: no vLLM environment; next: the tests of prl-engine-vllm that need a real server are skipped" >&2
	@$(MAKE) --no-print-directory agents-env || \
	  echo "make: no environment of agents; next: the gateway's tests with agents from PyPI are skipped" >&2
	$(PY) -m pytest $(PYTEST_ARGS)

lint: $(STAMPS)/test  ## style, types, import rules, sizes of modules and functions
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) tests/lint/sizes.py

format: $(STAMPS)/test  ## rewrite the code as `make lint` wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(STAMPS)/bench  ## print speed ratios against transformers and renderers
	$(PY) tests/benchmarks/run.py

docs: $(STAMPS)/test  ## write docs/reference anew, and what the README and the core's table say of the plugins
	$(PY) -m prl.plugin.generate_known --write plugins/* core/prl-train
	$(PY) docs/generate.py --write

dist: $(STAMPS)/run  ## build the wheels of all distributions into dist/
	rm -rf dist
	for folder in $(ALL_DISTS); do $(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist $$folder || exit 1; done
	@ls -1 dist

vllm-env: $(VLLM_STAMP)  ## a second environment with the CPU build of vLLM, for the tests of prl-engine-vllm

agents-env: $(AGENTS_STAMP)  ## a third environment with agents from PyPI, for the tests of the gateway

clean:  ## remove what this file made, and every cache
	rm -rf $(VENV) $(VLLM_VENV) $(AGENTS_VENV) dist runs .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is older than 3.11; next: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/run: $(STAMPS)/venv constraints.txt $(WORKSPACE:%=%/pyproject.toml)
	@echo "installing prl into $(VENV); the first time takes minutes, most of them for torch"
	$(INSTALL) hatchling editables
	$(INSTALL) --no-build-isolation $(EDITABLE)
	@touch $@

$(STAMPS)/test: $(STAMPS)/run tests/requirements.txt tests/requirements-data.txt tests/requirements-verifiers.txt $(OTHERS:%=%/pyproject.toml)
	$(INSTALL) -r tests/requirements.txt
	$(INSTALL) --no-deps -r tests/requirements-data.txt -r tests/requirements-verifiers.txt
	$(INSTALL) --no-deps --no-build-isolation $(OTHERS:%=-e %)
	@touch $@

$(STAMPS)/bench: $(STAMPS)/test tests/benchmarks/requirements.txt
	$(INSTALL) -r tests/benchmarks/requirements.txt
	@touch $@

# vLLM pins its own torch, so it lives in an environment of its own. The overridden packages have no CPU build and are not used.
# uv resolves its many pins in seconds; byte code is compiled now, since every start of a server would pay for it later.
$(VLLM_STAMP): $(STAMPS)/test core/prl-core/pyproject.toml plugins/prl-engine-vllm/pyproject.toml
	$(INSTALL) uv
	printf '%s ; python_version < "3"\n' torchvision torchaudio torchcodec triton > $(STAMPS)/vllm-overrides.txt
	$(VENV)/bin/uv venv --quiet --clear --python $(PY) $(VLLM_VENV)
	UV_FIND_LINKS="$$PIP_FIND_LINKS" $(VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --compile-bytecode \
	  --override $(STAMPS)/vllm-overrides.txt -r tests/requirements-vllm.txt
	$(VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --no-deps --no-build-isolation \
	  -e core/prl-core -e plugins/prl-engine-vllm
	@touch $@

# Agents pin what they use, each its own way: without dependencies, in an environment of their own.
$(AGENTS_STAMP): $(STAMPS)/venv tests/requirements-agents.txt
	$(PY) -m venv --clear $(AGENTS_VENV)
	$(AGENTS_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -r tests/requirements-agents.txt
	@touch $@
