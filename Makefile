# Everything a reader runs. `make` alone lists the targets.
#
# MAIN is the main checkout: a git worktree without a .venv of its own uses the
# environment, models and caches that are there.
PYTHON ?= python3
GIT_DIR := $(shell git rev-parse --path-format=absolute --git-common-dir 2>/dev/null)
MAIN := $(if $(filter %/.git,$(GIT_DIR)),$(patsubst %/.git,%,$(GIT_DIR)),$(CURDIR))
VENV := $(if $(wildcard .venv/bin/python),$(CURDIR)/.venv,$(MAIN)/.venv)
HOME_DIR := $(patsubst %/.venv,%,$(VENV))
MODELS := $(or $(MINISGL_MODELS),$(MAIN)/models)
STAMPS := $(MAIN)/.cache/stamps
PY := $(VENV)/bin/python
# A stamp's name holds what it was made from, so that checking out another tag
# (which touches every file) repeats nothing.
INSTALLED := $(VENV)/.installed-$(shell cd $(HOME_DIR) && \
	cat pyproject.toml constraints.txt 2>/dev/null | cksum | cut -d' ' -f1)
TREE := $(shell git rev-parse HEAD^{tree} 2>/dev/null)
MADE := $(MODELS)/.made-$(shell cat $(wildcard tools/zoo/*.py) /dev/null | \
	cksum | cut -d' ' -f1)
SMOLLM2 := $(MODELS)/smollm2-135m/config.json
# Not --quiet: it hides the warnings from --strict as well.
mkdocs = NO_MKDOCS_2_WARNING=1 BOOK_REPO_URL=$(BOOK_REPO_URL) \
	BOOK_EDIT_URI=$(if $(BOOK_REPO_URL),edit/main/docs/$(1)/) \
	$(PY) -m mkdocs build --strict -f $(2) > .cache/book.log 2>&1 \
	|| { cat .cache/book.log; exit 1; }

.DEFAULT_GOAL := help
.PHONY: help setup run test test-full book serve-book videos lint clean smollm2

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' \
		$(firstword $(MAKEFILE_LIST))

setup: $(INSTALLED) $(MADE) smollm2 $(STAMPS)/tags-$(TREE) ## Make .venv, the models and the tags (no root needed)

$(INSTALLED):
	@echo "setup: installing into $(VENV) (a few minutes the first time)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@cd $(HOME_DIR) && $(PY) -m pip install -qq --disable-pip-version-check \
		-c constraints.txt -e '.[dev]'
	@rm -f $(VENV)/.installed-* && touch $@

$(MADE): | $(INSTALLED)
	@echo "setup: making the tiny checkpoints"
	@mkdir -p $(MODELS)
	@$(PY) tools/models.py make all
	@rm -f $(MODELS)/.made-*
	@touch $@

# Fetched at most once an hour while it fails, so that work offline stays quick.
smollm2: | $(INSTALLED) $(MADE)
	@test -e $(SMOLLM2) \
		|| test -n "$$(find $(MODELS)/.smollm2-failed -mmin -60 2>/dev/null)" \
		|| { echo "setup: fetching SmolLM2-135M-Instruct (once)"; \
		     $(PY) tools/models.py fetch smollm2-135m; } \
		|| touch $(MODELS)/.smollm2-failed

# A tag's own tree (it holds stages/TAG.md) makes no tags.
$(STAMPS)/tags-$(TREE): | $(INSTALLED)
	@mkdir -p $(STAMPS) && rm -f $(STAMPS)/tags-*
	@test -z "$(TREE)" -o -e stages/TAG.md || $(PY) tools/steps.py tag
	@touch $@

run: setup ## Serve a model and print a curl command (ARGS="--prompt ..." answers once)
	@$(PY) tools/run.py $(ARGS)

test: setup ## Every check: stages, types, unit tests, the book
	@$(PY) tools/check.py $(ARGS)

test-full: setup ## The same, with mutants, long stress runs and all
	@$(PY) tools/check.py --full $(ARGS)

book: setup ## Build the book, English and Chinese, into site/
	@mkdir -p .cache
	@$(call mkdocs,en,mkdocs.yml)
	@$(call mkdocs,zh,mkdocs.zh.yml)
	@$(PY) -m tools.videos embed site
	@echo "book: built in site/; make serve-book shows it"

serve-book: book ## Serve the built book on http://127.0.0.1:8000
	@$(PY) -m http.server 8000 --bind 127.0.0.1 --directory site

videos: setup ## Render the six films (needs ffmpeg and espeak-ng)
	@$(PY) -m tools.videos render $(ARGS)

lint: setup ## Style, types and the rules of the stages, in seconds
	@$(PY) tools/check.py --only ruff --only mypy --only lint

clean: ## Remove what is built, keep .venv and models
	rm -rf site build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
