# Every target builds the environment it needs; only `make test` may install something: a browser and PostgreSQL, as root.
PY := .venv/bin/python
GRAFT := .venv/bin/graft
STORE ?= sqlite:///runs/graft.db
ARGS ?=

.PHONY: help setup demo demo-compare demo-study demo-methods dashboard test postgres test-sglang test-gpu browser lint format bench peers \
	clean distclean
.NOTPARALLEL:

help:
	@echo "make demo          three tiny models learn together; dashboard on loopback (2 to 5 minutes)"
	@echo "make demo-compare  the same seeds with and without exchange, side by side"
	@echo "make demo-study    every arm on five seed pairs: the table of docs/demo.md (about an hour)"
	@echo "make demo-methods  every method of the paper's tables on two seed pairs (about an hour)"
	@echo "make dashboard     the dashboard over a store (STORE=$(STORE))"
	@echo "make test          lint, types and every test"
	@echo "make test-sglang   tests against real SGLang servers on the CPU (.venv-sglang)"
	@echo "make test-gpu      training, sampling and sleep on this machine's GPU, under 8 minutes (graft doctor --gpu)"
	@echo "make bench         one GRPO step against TRL (.venv-bench)"
	@echo "make peers         advantages and losses against verl and TRL (.venv-peers)"
	@echo "make lint, make format, make setup, make clean, make distclean"

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt tools/setup.sh
	@tools/setup.sh main

.venv-bench/.installed: bench-constraints.txt tools/setup.sh
	@tools/setup.sh bench

.venv-peers/.installed: peers-constraints.txt tools/setup.sh
	@tools/setup.sh peers

.venv-sglang/.installed: sglang-constraints.txt tools/setup.sh tools/sglang_cpu/sglang_stand_ins.py
	@tools/setup.sh sglang

demo: setup
	@$(GRAFT) train configs/demo.yaml --dashboard $(ARGS)

demo-compare: setup
	@$(GRAFT) sweep configs/sweeps/demo_compare.yaml $(ARGS)

demo-study: setup
	@$(GRAFT) sweep configs/sweeps/demo_study.yaml $(ARGS)

demo-methods: setup
	@$(GRAFT) sweep configs/sweeps/demo_methods.yaml $(ARGS)

dashboard: setup
	@$(GRAFT) dashboard --store $(STORE) $(ARGS)

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: setup
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

browser:
	@tools/browser.sh

postgres:
	@tools/postgres.sh

test: lint browser postgres
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PY) -m pytest -q $(ARGS)

test-sglang: export GRAFT_SGLANG_PYTHON := $(CURDIR)/.venv-sglang/bin/python
test-sglang: setup .venv-sglang/.installed
	@OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PY) -m pytest -q -m sglang tests/sglang $(ARGS)

bench: setup .venv-bench/.installed
	@OMP_NUM_THREADS=1 $(PY) tests/benchmarks/run.py $(ARGS)

# PY=python3 takes an environment of one's own, on a machine without a network.
test-gpu: $(if $(filter .venv/bin/python,$(PY)),setup)
	@$(PY) -m population doctor --gpu $(ARGS)

peers: .venv-peers/.installed
	@OMP_NUM_THREADS=1 .venv-peers/bin/python -m pytest -q -s -m peers tests/peers $(ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-bench .venv-peers .venv-sglang
