# Every target sets up what it needs: from a clean clone, `make demo` or `make test` is enough.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install demo test lint verify verify-quick bench protocol clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHONS := python3.11 python3 python3.12 python3.13
# How many tests run at once; files stay whole, so that what a file sets up is set up once.
JOBS ?= 2

help:
	@echo "make install       a virtual environment in $(VENV) with everything the tests and figures need"
	@echo "make demo          train PPO on CartPole-v1 until it is solved, and plot it"
	@echo "make test          lint, then every test"
	@echo "make lint          ruff, mypy, and who may import whom"
	@echo "make verify-quick  the learning targets in short; make verify: all of them"
	@echo "make bench         every benchmark, beside what bounds it"
	@echo "make protocol      Python's messages anew from podium/serving/protocol/podium.proto"
	@echo "make clean         remove caches, builds and the demo's run; $(VENV) stays"

install: $(STAMP)

demo: install
	$(BIN)/podium train ppo CartPole-v1 --steps 100000 --stop-return 475 --seed 1 --out runs/demo --overwrite

# Some tests have limits of time. What fails while others keep the machine busy has to pass alone.
test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile || { echo "Once more, one at a time, what failed:"; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none; }

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy podium
	$(BIN)/lint-imports

verify: install
	$(BIN)/podium verify
	$(BIN)/python -m tests.ray_node_loss

verify-quick: install
	$(BIN)/podium verify --quick

bench: install
	$(BIN)/podium bench sampling
	$(BIN)/podium bench learning
	$(BIN)/podium bench controller
	$(BIN)/podium bench scaling
	$(BIN)/podium bench shards
	$(BIN)/podium bench replay
	$(BIN)/podium bench central
	$(BIN)/podium bench apex
	$(BIN)/podium bench rpc --transport torch_rpc,grpc,ray,shm --rounds 3

protocol: install
	$(BIN)/python -m grpc_tools.protoc -I podium/serving/protocol --python_out=podium/serving/protocol \
		--pyi_out=podium/serving/protocol podium/serving/protocol/podium.proto

clean:
	rm -rf build dist runs/demo .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache MUJOCO_LOG.TXT
	find podium tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing podium and its dependencies into $(VENV): 2 to 3 GB, a few minutes the first time."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev,bench]' -c constraints.txt
	@ldconfig -p 2>/dev/null | grep -q libEGL.so.1 || $(MUJOCO_VIDEO)
	@touch $@
	@echo "Installed: $(BIN)/podium --help, or make demo."

# Videos of MuJoCo envs are the one thing here that needs a library of the system.
MUJOCO_VIDEO = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	{ apt-get -qq update && apt-get -qq install -y libegl1 libgl1-mesa-dri; } >/dev/null 2>&1; } || \
	echo "Note: libEGL is missing (Debian, Ubuntu: apt install libegl1 libgl1-mesa-dri); only videos of MuJoCo envs need it."

$(BIN)/python:
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "Podium needs Python 3.11 or newer; python3 here is $$(python3 --version 2>&1 || echo missing)." >&2; exit 1; \
	fi; \
	if ! $$found -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$found has no venv module (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; \
	fi; \
	echo "Making $(VENV) with $$($$found --version)."; \
	$$found -m venv $(VENV)
