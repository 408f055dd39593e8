# `make` alone lists what there is. SHELL is bash for `set -o pipefail`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON := .cache/venv/bin/python
# The embedded store's Python, also for tests.
export UNDERSPAN_PYTHON := $(CURDIR)/$(PYTHON)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install and build everything that is needed (Debian or Ubuntu; asks apt for what is missing)
	@tools/setup.sh

.PHONY: build
build: ## Build target/release/underspan
	@tools/setup.sh build

.PHONY: demo
demo: setup ## Play the two stories on nginx, gunicorn, Django and PostgreSQL (root; KEEP=1 keeps it up)
	@$(PYTHON) demo/run.py $(if $(filter 1,$(KEEP)),--keep)

.PHONY: demo-hidden
demo-hidden: setup ## Show what a CPU profile of a Go consumer hides: its waits (root, Go; KEEP=1 keeps it up)
	@$(PYTHON) demo/hidden.py $(if $(filter 1,$(KEEP)),--keep)

.PHONY: demo-stack
demo-stack: setup ## Show which stage of the receive stack makes packets late: the application, the firewall (root)
	@$(PYTHON) demo/stack.py

# The failures are real processes, signals and time limits: what a loaded machine spoils is played
# again, and said. Truth in full, on every interpreter, is `make truth`.
.PHONY: test
test: setup ## Run every test (root)
	cargo test --release --workspace --locked
	$(PYTHON) -m pytest -q python tests/truth benches
	@tools/setup.sh readers
	.cache/readers/bin/python -m pytest -q tests/exports
	$(PYTHON) -m pytest -q --reruns 2 tests/failures
	$(PYTHON) -m pytest -q --reruns 1 tests/metrics
	$(PYTHON) -m pytest -q --reruns 2 tests/joined tests/loops
	$(PYTHON) tests/truth --quick

.PHONY: truth
truth: setup ## Compare what Underspan says with injected delays; write docs/accuracy.md (root)
	$(PYTHON) tests/truth --report docs/accuracy.md

.PHONY: bench
bench: setup ## Measure what Underspan costs; write docs/benchmarks.md (root; QUICK=1: a smoke test; ONLY=PART: one part)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement benches/requirements.txt
	$(PYTHON) benches $(if $(filter 1,$(QUICK)),--quick) $(ONLY:%=--only %) --report docs/benchmarks.md

.PHONY: kernels
kernels: ## Boot Debian's kernels 6.1 and 6.12 in qemu and check there what the agent says
	python3 tests/kernels

.PHONY: lint
lint: ## Formatters and linters, changing nothing
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	.cache/venv/bin/ruff check python demo tests benches
