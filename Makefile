# Every verb of the project; `make` lists them. Each installs what it needs.
.DEFAULT_GOAL := help
SHELL := /bin/bash

UV_VERSION := 0.13.9
# The user's own uv, else one in a private environment.
export UV := $(or $(shell command -v uv 2>/dev/null),$(CURDIR)/.uv/bin/uv)
PYTHON := .venv/bin/python
DB ?= results.duckdb
MODEL ?=
BENCH_FLAGS = --db "$(DB)" $(if $(MODEL),--model "$(MODEL)")
# Nothing is sent anywhere while measuring or testing.
export HF_HUB_DISABLE_TELEMETRY := 1

help: ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: .venv/.synced ## install the locked environment
	@git config diff.duckdb.textconv "$(PYTHON) -m suite summary" 2>/dev/null || true

bench: setup ## measure each path once on the default model, about 15 minutes at first
	@$(PYTHON) -m suite bench --plan default $(BENCH_FLAGS)

bench-full: setup ## add ranks 4 to 32, G = 1 and the fusion switches
	@$(PYTHON) -m suite bench --plan full $(BENCH_FLAGS)

noise-audit: setup ## measure native dense against itself: the noise floor of this machine
	@$(PYTHON) -m suite bench --plan noise-audit $(BENCH_FLAGS)

bench-smoke: setup ## run everything once on a tiny model
	@$(PYTHON) -m suite bench --plan smoke --db bundles/smoke.duckdb

bench-kernels: setup ## time the Mojo op against the stock matmul
	@$(PYTHON) kernels/bench/bench_generated_linear.py

summary: setup ## print the results again
	@$(PYTHON) -m suite summary "$(DB)"

dashboard: setup ## open the dashboard on the results
	@WEIGHTLESS_DB="$(DB)" $(PYTHON) -m streamlit run dashboard/app.py

readme: setup ## write the results table into README.md
	@$(PYTHON) -m suite readme --db "$(DB)"

test: setup browser ## run every test and check
	@$(MAKE) --no-print-directory lint
	@$(PYTHON) -m pytest

test-fast: setup ## run the tests that compile nothing and download nothing
	@$(PYTHON) -m pytest -m 'not slow and not real_model' --ignore tests/browser

lint: setup ## ruff, mypy, import contracts
	@$(PYTHON) -m ruff format --check . && $(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@report=$$(.venv/bin/lint-imports --no-cache 2>&1) || { echo "$$report"; exit 1; }

clean: ## remove environments and caches of this folder; results stay
	rm -rf .venv .uv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.venv/.synced: uv.lock pyproject.toml | $(UV)
	@echo "installing the locked environment into .venv"
	@$(UV) sync --frozen
	@touch $@

$(CURDIR)/.uv/bin/uv:
	@echo "installing uv $(UV_VERSION) into .uv"
	@python3 -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# Debian's Chromium for the browser check: installed where that is allowed.
browser:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null \
			|| echo "chromium could not be installed; the browser tests will say so"; \
	fi

.PHONY: help setup bench bench-full noise-audit bench-smoke bench-kernels summary dashboard readme test test-fast lint clean browser
