# Everything that people and CI do, by the same commands. `make help` lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ROOT   ?=
DATASET ?=
ARGS   ?=
SECONDS ?= 60
JOBS    ?= 3
PEERS  ?= $(basename $(notdir $(wildcard benchmarks/peers/*.txt)))
GIVEN_TREE = $(or $(TREE),$(error give TREE=folder))
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start hundreds of processes: without bytecode, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-all test-slow campaign simulation test-pythons test-oldest test-recipes test-loops recipes-page test-aarch64 lint format bench bench-peers pages gpu-check gpu-campaign fuzz weight site wheel wheels test-wheels clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.done  ## make the virtual environment with everything for development

# Torch comes first and pinned: the resolver would add several GB of CUDA. torchvision comes without
# its dependencies: it requires another build of torch, and tests need only its transforms
# (tests/torchvision_stub.py). Python compiles modules when they are imported; pip would compile all
# of them, for a minute.
$(VENV)/.done: setup.cfg setup.py pyproject.toml constraints.txt $(shell find fastdata/native -type f)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --no-compile --upgrade pip
	$(BIN)/pip install -q --no-compile -c constraints.txt torch
	$(BIN)/pip install -q --no-compile -c constraints.txt --no-deps torchvision
	$(BIN)/pip install -q --no-compile -c constraints.txt -e '.[dev]'
	touch $@

# petastorm works only beside libraries too old for everything else.
.venvs/petastorm/.done: tests/petastorm-requirements.txt
	$(PYTHON) -m venv .venvs/petastorm
	.venvs/petastorm/bin/pip install -q 'setuptools<70' wheel
	.venvs/petastorm/bin/pip install -q --no-compile --no-build-isolation -r tests/petastorm-requirements.txt
	touch $@

.venvs/site/.done: tests/site-requirements.txt
	$(PYTHON) -m venv .venvs/site
	.venvs/site/bin/pip install -q --no-compile --no-deps -r tests/site-requirements.txt
	touch $@

# The demonstration needs torch and fastdata alone, a tenth of what development needs. Without -q,
# so that pip shows what it downloads. Not editable: beside a checkout that is called fastdata, Python
# takes the checkout's folder for the package before it asks an editable install.
.venvs/run/.done: setup.cfg setup.py pyproject.toml constraints.txt $(shell find fastdata/native -type f) $(shell find fastdata converters benchmarks examples -name '*.py')
	@echo "installing fastdata and PyTorch into .venvs/run"
	$(PYTHON) -m venv .venvs/run
	.venvs/run/bin/pip install --no-compile -c constraints.txt torch
	@echo "compiling fastdata's core: about a minute"
	.venvs/run/bin/pip install --no-compile -c constraints.txt .
	touch $@

RUN = $(if $(wildcard $(VENV)/.done),$(VENV),.venvs/run)
run: $(RUN)/.done  ## convert a made sample (or ROOT=/data/imagenet) to LMDB, verify it, iterate it
	$(if $(ROOT),,test -d run/imagenet || $(RUN)/bin/fastdata sample --out run/imagenet)
	$(RUN)/bin/fastdata convert imagenet --root $(or $(ROOT),run/imagenet) --split train --out run/imagenet-train-lmdb
	$(RUN)/bin/fastdata verify run/imagenet-train-lmdb
	$(RUN)/bin/fastdata bench run/imagenet-train-lmdb

# A file's tests stay together: they share servers and clusters. Their order is conftest.py's, not
# by number, which would begin the few long ones last.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: setup  ## test each behaviour once, JOBS tests at a time
	$(PYTEST) -m 'not slow' $(ARGS)

test-all: test test-slow  ## run all tests

# Tests wait for disks, servers and other processes, so tests on other Pythons run at the same time.
test-slow: setup .venvs/petastorm/.done .venvs/site/.done  ## run the other tests: kills, training, browsers, other Pythons, campaigns
	@mkdir -p build; status=0; \
	    $(MAKE) -k test-pythons test-oldest JOBS=1 >build/other-pythons.log 2>&1 & others=$$!; \
	    $(PYTEST) -m slow $(ARGS) || status=$$?; \
	    wait $$others || status=$$?; cat build/other-pythons.log; exit $$status

# 100,000 flips take half an hour on one core, 1,000 kills as long.
campaign: setup  ## damage, change, kill, attack, fail at length: FLIPS, CHANGES, ARCHIVES, KILLS, FAULTS, OPENS, FORKS, ANSWERS, OUTLINES, MASKS, SAMPLES, TARGETRUNS, MIXTURES, PACKINGS, CODECS, RESUMES, COCO, VOCYOLO, drawn by SEED
	FASTDATA_CAMPAIGN_FLIPS=$(or $(FLIPS),100000) FASTDATA_CAMPAIGN_KILLS=$(or $(KILLS),1000) \
	FASTDATA_CAMPAIGN_FAULTS=$(or $(FAULTS),2000) FASTDATA_CAMPAIGN_OPENS=$(or $(OPENS),100000) \
	FASTDATA_CAMPAIGN_CHANGES=$(or $(CHANGES),10000) FASTDATA_CAMPAIGN_UNMOUNTS=$(or $(UNMOUNTS),500) \
	FASTDATA_CAMPAIGN_FORKS=$(or $(FORKS),1000) FASTDATA_CAMPAIGN_RANKS=$(or $(RANKS),50) \
	FASTDATA_CAMPAIGN_SHORTAGES=$(or $(SHORTAGES),50) FASTDATA_CAMPAIGN_ARCHIVES=$(or $(ARCHIVES),100000) \
	FASTDATA_CAMPAIGN_ANSWERS=$(or $(ANSWERS),10000) FASTDATA_CAMPAIGN_OUTLINES=$(or $(OUTLINES),100000) \
	FASTDATA_CAMPAIGN_MASKS=$(or $(MASKS),10000) FASTDATA_CAMPAIGN_TARGETS=$(or $(SAMPLES),10000) \
	FASTDATA_CAMPAIGN_TARGET_RUNS=$(or $(TARGETRUNS),500) \
	FASTDATA_CAMPAIGN_MIXTURES=$(or $(MIXTURES),10000) \
	FASTDATA_CAMPAIGN_PACKINGS=$(or $(PACKINGS),10000) FASTDATA_CAMPAIGN_CODECS=$(or $(CODECS),1000000) \
	FASTDATA_CAMPAIGN_RESUMES=$(or $(RESUMES),10000) FASTDATA_CAMPAIGN_FRAMEWORKS=$(or $(FRAMEWORKS),1) \
	FASTDATA_CAMPAIGN_COCO=$(or $(COCO),1000) FASTDATA_CAMPAIGN_VOC_YOLO=$(or $(VOCYOLO),1000) \
	FASTDATA_CAMPAIGN_SEED=$(or $(SEED),0) \
	    $(BIN)/python -m pytest -s -n 0 --timeout 0 tests/test_campaign*.py tests/test_targets_drawn.py $(ARGS)

simulation: setup  ## plan a million epochs, RUNS combinations drawn from SEED on: each sample exactly once; SMALL=1: few samples
	FASTDATA_SIMULATION_RUNS=$(or $(RUNS),650000) FASTDATA_SIMULATION_SEED=$(or $(SEED),0) \
	FASTDATA_SIMULATION_SMALL=$(SMALL) \
	    $(BIN)/python -m pytest -s -n 0 --timeout 0 tests/test_exactly_once.py $(ARGS)

# 3.13 is the newest; 3.12 lies between it and the one of setup.
test-pythons:  ## test without torch on PYTHONS (3.13), if they are installed
	JOBS=$(JOBS) tests/core.sh $(or $(PYTHONS),3.13)

test-oldest:  ## test without torch on Python 3.10 with the oldest libraries that setup.cfg allows
	JOBS=$(JOBS) tests/core.sh oldest

# Beside the environment for development, whose packages it sees.
.venvs/recipes/.done: $(VENV)/.done tests/recipes-requirements.txt
	$(PYTHON) -m venv .venvs/recipes
	for found in $(abspath $(VENV))/lib/python*; do \
	    echo "import site; site.addsitedir('$$found/site-packages')" \
	        > .venvs/recipes/lib/$$(basename $$found)/site-packages/development.pth; done
	.venvs/recipes/bin/pip install -q --no-compile --no-deps -r tests/recipes-requirements.txt
	touch $@

test-recipes: .venvs/recipes/.done  ## test the transforms of timm, open_clip, transformers and lightly
	.venvs/recipes/bin/python -m pytest -n $(JOBS) --dist loadfile tests/test_timm.py \
	    tests/test_open_clip.py tests/test_open_clip_data.py tests/test_image_processors.py tests/test_lightly.py \
	    tests/test_trainer.py tests/test_recipes_page.py tests/test_overridden_recipes.py \
	    tests/test_noticing.py tests/test_patches.py $(ARGS)

test-loops: .venvs/recipes/.done  ## run training scripts as they are, from checkouts in SRC (pytorch/examples, vision, timm)
	FASTDATA_SCRIPTS=$(abspath $(or $(SRC),$(error give SRC=folder))) \
	    .venvs/recipes/bin/python -m pytest -rs -n 0 tests/test_scripts.py $(ARGS)

recipes-page: .venvs/recipes/.done  ## remake docs/recipes.md
	.venvs/recipes/bin/python tests/recipes_page.py > docs/recipes.md

test-aarch64: setup  ## test the native core for aarch64, emulated (x86-64 Debian, qemu-user)
	PYTHON=$(BIN)/python tests/aarch64.sh $(ARGS)

# The checkers of types and imports do not know that setup.cfg maps converters/ to
# fastdata.converters, so they read a folder of links with the layout of imports. The types of the
# native module are generated; the import checker ignores .pyi files, so they are there as .py, too.
# Vermin takes decode() of any bytes for Python 2's str.decode.
lint: setup  ## check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find fastdata/native fuzz tests -name '*.cpp' -o -name '*.[ch]' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python tests/structure.py
	$(BIN)/vermin -q -t=3.10- --no-tips --violations --exclude str.decode fastdata converters benchmarks examples tests
	rm -rf build/typed && mkdir -p build/typed/fastdata
	ln -s $(CURDIR)/fastdata/* build/typed/fastdata/
	ln -s $(CURDIR)/converters build/typed/fastdata/converters
	ln -s $(CURDIR)/benchmarks build/typed/fastdata/benchmarks
	ln -s $(CURDIR)/examples build/typed/fastdata/examples
	$(BIN)/pybind11-stubgen fastdata._native -o build/typed --ignore-invalid-expressions fastdata::
	cp build/typed/fastdata/_native.pyi build/typed/fastdata/_native.py
	cd build/typed && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml -p fastdata
	cd build/typed && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config $(CURDIR)/.importlinter

format: setup  ## put the code into the shape that lint wants
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	find fastdata/native fuzz tests -name '*.cpp' -o -name '*.[ch]' | xargs $(BIN)/clang-format -i

bench: setup  ## measure WORKLOADS, by default all loaders, on the images of TREE (ARGS)
	$(if $(WORKLOADS),$(BIN)/python benchmarks/workloads $(WORKLOADS) --tree $(GIVEN_TREE) --out docs/results $(ARGS),\
	    $(BIN)/fastdata bench --tree $(GIVEN_TREE) --out docs/results/loaders.json $(ARGS))

# A peer that cannot be built here does not keep the others from being built.
bench-peers:  ## make an environment for each peer of the loader benchmark (PEERS="ffcv spdl")
	@failed=; for peer in $(PEERS); do \
	    echo "$$peer"; PYTHON=$(PYTHON) benchmarks/peers/build.sh $$peer || failed="$$failed $$peer"; \
	done; [ -z "$$failed" ] || { echo "not built:$$failed" >&2; exit 1; }

pages: setup  ## remake docs/benchmarks.md from docs/results
	mkdir -p build
	$(BIN)/python benchmarks/workloads page docs/results > build/page.md && mv build/page.md docs/benchmarks.md

# From tests/, because the packages of the checkout would hide those that are installed.
gpu-check:  ## on a machine with a GPU and fastdata installed, without network: test and measure for 8 minutes (TREE of JPEGs, OUT)
	cd tests && $(if $(wildcard $(PYTHON)),$(abspath $(PYTHON)),$(PYTHON)) ../benchmarks/workloads/gpu_check.py \
	    --tests . --out $(abspath $(or $(OUT),gpu-check)) $(if $(TREE),--tree $(abspath $(TREE))) $(ARGS)

gpu-campaign:  ## on a machine with a GPU, for hours: steps of networks fed from the images of TREE (ARGS)
	$(MAKE) bench WORKLOADS=training TREE=$(GIVEN_TREE)

weight: setup  ## count lines of code by wing, and words of docs
	$(BIN)/python tests/weight.py

fuzz: setup  ## feed damaged images and indexes to the core, under sanitizers, for SECONDS in all (TARGETS="threads")
	PYTHON=$(BIN)/python fuzz/run.sh $(SECONDS) $(TARGETS)

site: .venvs/site/.done  ## build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 .venvs/site/bin/mkdocs build --strict

wheels:  ## build dist/: the source distribution and the wheels for Linux (ARGS="x86_64")
	PYTHON=$(PYTHON) .github/wheels/build.sh $(ARGS)

test-wheels:  ## try the wheels in dist/ in empty environments; aarch64 emulated
	.github/wheels/try.sh
	WHEEL=1 PYTHON=$(PYTHON) tests/aarch64.sh

wheel: setup  ## build dist/fastdata_torch-*.whl
	$(BIN)/pip wheel -q --no-deps --wheel-dir dist .

clean:  ## remove everything that the other targets made
	rm -rf $(VENV) .venvs build dist fastdata/_native.*.so run *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
