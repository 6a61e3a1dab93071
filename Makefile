# netdoctor: `make preflight` sets up and runs the doctor, `make test` runs every test that can run here.
#
# Overridable:
#   PYTHON  the interpreter that .venv is made from (>= 3.10)
#   TORCH   what is installed where no Python of yours has a torch.  Plain torch may fetch gigabytes of CUDA packages;
#           for a CPU build say where it is: make preflight TORCH='torch==2.13.0 --index-url URL'.  Empty: none.
#   ARGS    options of `netdoctor preflight`
#   NCCLS   the NCCL versions that `make libnccl` fetches
#   TORCHES the releases of torch that `make torches` tries
PYTHON ?= python3
TORCH  ?= torch==2.13.0 numpy
ARGS   ?=
NCCLS  ?= 2.21.5 2.29.7
TORCHES ?= 2.4.1 2.6.0 2.8.0 2.10.0 2.12.1 newest

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SHELL := /bin/sh
# A variable: make would take its comma for one between arguments.
OURS := --editable '.[junit,prometheus]'
DEVS := --editable '.[dev]'
NO_PIP := netdoctor: pip could not install that into $(VENV)
NO_INDEX := it needs a package index that this machine reaches (pip config list; PIP_INDEX_URL=, PIP_FIND_LINKS=, HTTPS_PROXY=).  \
  Without one: make pyz where there is one, and copy build/netdoctor.pyz
# $(call pip,WHAT): where pip fails, why.  It says what was not found, and not that it reached nobody.
pip = said=$$($(PIP) $(1) 2>&1); code=$$?; test -z "$$said" || printf '%s\n' "$$said" >&2; test $$code -eq 0 || { \
  case $$said in \
    *"No matching distribution"*|*"Could not find a version"*|*"Could not fetch URL"*|*ConnectTimeout*|*ReadTimeout*|*"Connection"*" error"* \
    |*"Max retries"*|*ProxyError*|*SSLError*|*"HTTP error"*) echo "$(NO_PIP): $(NO_INDEX)" ;; \
    *) printf '%s\n' "$(NO_PIP): $$(printf '%s\n' "$$said" | grep -v '^ *$$' | tail -n 1)" ;; esac >&2; \
  case $$PWD in *\$$*) echo "setuptools takes a \$$ in the path of this folder for a variable: give it another name" >&2 ;; esac; exit 1; }

# A .venv knows its path (pip's scripts name it), so one whose clone was moved, whose Python is gone, or whose making was
# interrupted before pip was in it, is made anew.  Whatever links lead here, its path is that of the folder itself.
ifeq ($(shell test ! -e $(VENV) || { test -x $(BIN)/python && grep -qF "$$(pwd -P)/$(BIN)/python" $(BIN)/pip; } 2>/dev/null || echo stale),stale)
.PHONY: $(BIN)/python $(VENV)/.run $(VENV)/.dev $(VENV)/.torch
endif

.PHONY: help preflight check .types .units test parts pyz release lab bench golden mutants fuzz docs libnccl newest-nccl torches gpu-proof clean

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

preflight: $(VENV)/.run $(VENV)/.torch  ## set up, look at this machine, run an all-reduce, write build/report.json
	@mkdir -p build
	@set --; test ! -e $(VENV)/.netdoctor-torch || set -- --python "$$PWD/$(BIN)/python"; \
	  $(BIN)/python -I -m netdoctor preflight --output build/report.json "$$@" $(ARGS); \
	  code=$$?; case $$code in 1|2|126|127) ;; *) echo "the whole report: build/report.json" >&2 ;; esac; exit $$code

# One line where Python is too old or Debian split venv off, instead of a traceback.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "netdoctor needs Python >= 3.10; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true). Name another: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "this Python has no venv module: install it (Debian, Ubuntu: apt install python3-venv), then run make again" >&2; exit 1; }
	@test ! -e $(VENV) || echo "making $(VENV) anew: it is of another folder, its Python is gone, or it is not whole" >&2; rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@$(call pip,$(OURS))
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@$(call pip,$(DEVS))
	@touch $@ $(VENV)/.run

# The all-reduce goes through the torch of the job.  Only where no Python of the user has one, one is installed here; the
# marker .netdoctor-torch keeps it from being judged as the job's.  Another TORCH than the last time is tried.
ifneq ($(shell cat $(VENV)/.torch 2>/dev/null),$(strip $(TORCH)))
.PHONY: $(VENV)/.torch
endif
$(VENV)/.torch: | $(BIN)/python
	@if found=$$($(BIN)/python tools/find_torch.py); then echo "using the torch of $$found" >&2; \
	 elif [ -n "$(strip $(TORCH))" ]; then echo "no Python here has a torch: installing $(TORCH) into $(VENV)" >&2; \
	   $(call pip,$(TORCH)); touch $(VENV)/.netdoctor-torch; fi
	@echo '$(strip $(TORCH))' > $@

# The types are looked at while the unit tests run: in a fresh clone mypy has no cache and needs as long as a third of them.
check: $(VENV)/.dev  ## lint, types and unit tests
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j 2 .types .units

.types:
	@$(BIN)/mypy

.units:
	@$(BIN)/pytest -q -n auto --dist worksteal -m 'not slow' tests/unit

# The parts come first: some unit tests need them, too.
test: $(VENV)/.torch parts check  ## check, the slow unit tests, and what runs live on this machine
	@code=0; $(BIN)/pytest -q -n auto --dist worksteal -m slow tests/unit || code=$$?; \
	 $(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --durations=20 tests/live || code=$$?; \
	 $(BIN)/python -m tests.support.packages >&2; exit $$code

# None is needed: without one its tests skip, and say so.
parts: $(VENV)/.dev  ## what pip can fetch for the live tests: libnccl, a validator of manifests, Helm, Prometheus, Ansible
	@$(MAKE) --no-print-directory libnccl || echo "no real libnccl: tests that ask NCCL itself will skip" >&2
	@$(BIN)/python -c 'import kubernetes_validate, celpy' 2>/dev/null || $(PIP) kubernetes-validate cel-python || \
	  echo "no kubernetes-validate, no cel-python: manifests are rendered, not validated; no admission policy is tried" >&2
	@$(BIN)/python -m tests.support.machines.fetch helm || echo "no helm: the chart is not rendered" >&2
	@$(BIN)/python -m tests.support.machines.fetch prometheus || echo "no Prometheus: alert rules are not loaded" >&2
	@test -x build/ansible/bin/ansible-lint || { $(BIN)/python -m venv build/ansible && \
	  build/ansible/bin/python -m pip install --quiet --disable-pip-version-check ansible-core ansible-lint; } || \
	  echo "no ansible-core: tests of the collection will skip" >&2

# By default one of each way to choose an interface: before and from 2.28 on.
libnccl: | $(BIN)/python  ## fetch real libnccl for the tests that ask NCCL itself: NCCLS='2.21.5 2.29.7' (300 MB each)
	@$(BIN)/python -m tests.support.machines.fetch nccl $(NCCLS)

newest-nccl: | $(BIN)/python  ## fetch the newest libnccl that pip finds: does it still do as netdoctor says?
	@$(BIN)/python -m tests.support.machines.fetch newest-nccl

# Two releases at a time, each in a pytest of its own: at most 6 GB on the disk; nothing is left.
torches: $(VENV)/.dev  ## fetch real releases of torch and run netdoctor on them: TORCHES='2.4.1 newest'
	@printf '%s\n' $(TORCHES) | xargs -P 2 -I RELEASE env TORCHES=RELEASE $(BIN)/pytest -q -n 1 tests/live/test_torch_versions.py

pyz: $(VENV)/.run  ## one file that runs anywhere: build/netdoctor.pyz
	@$(BIN)/python tools/build_pyz.py build/netdoctor.pyz

# A venv of its own: the generator needs netdoctor, mkdocs none of its tools.
docs: $(VENV)/.run  ## the documentation as a site (build/site) and the man page (build/netdoctor.1)
	@$(BIN)/python -m tools.reference build/docs --man build/netdoctor.1
	@test -x build/mkdocs/bin/mkdocs || { $(BIN)/python -m venv build/mkdocs && \
	  build/mkdocs/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs-material>=9,<10'; }
	@NO_MKDOCS_2_WARNING=1 build/mkdocs/bin/mkdocs build --quiet --strict
	@echo "build/site/index.html"

release: | $(BIN)/python  ## wheel, sdist, pyz, deb, rpm, image (IMAGE_BASE=), collection, chart, bill of materials, SHA256SUMS; built twice: dist/
	@$(BIN)/python -m tools.release --twice $(if $(IMAGE_BASE),--image-base '$(IMAGE_BASE)') dist

bench: $(VENV)/.dev $(VENV)/.torch  ## measure; ratios within one run, build/bench.json
	@$(BIN)/python -m bench $(ARGS)

fuzz: $(VENV)/.dev  ## mutated inputs for every reader of what others wrote, for an hour: SECONDS=60, TARGETS='log ras'
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),3600) $(TARGETS)

# No network: dependencies from WHEELS (a folder) where .venv is not there.  PYTHON names the Python whose torch has CUDA.
# Exit codes: 0 all was seen that this machine can show, 3 a claim failed, 4 something (or everything) was not seen.
gpu-proof:  ## on a machine with a GPU: prove it (PYTHON=, WHEELS=, OUT=; at most 8 minutes), write docs/evidence
	@$(firstword $(if $(filter file,$(origin PYTHON)),,$(PYTHON)) python3) tools/gpu_proof/bootstrap.py \
	  $(if $(WHEELS),--wheels '$(WHEELS)') $(if $(filter file,$(origin PYTHON)),,--python '$(PYTHON)') $(if $(OUT),--out '$(OUT)') $(ARGS)

golden: $(VENV)/.dev  ## write the composed machines, their reports and the fault findings again; look at the diff
	@$(BIN)/python -m tests.lab compose golden

lab: $(VENV)/.dev $(VENV)/.torch  ## what takes longer than a test run (some four hours on two cores, root; `python -m tests.lab PART` one part): evidence taken away, kills, every fault, every libnccl, CUDA torch
	@$(BIN)/python -m tests.lab

mutants: $(VENV)/.dev  ## can the checks' tests fail?  DRAW=50 SEED=7 draws some, CHECK=name takes one check
	@DRAW=$(DRAW) SEED=$(SEED) CHECK=$(CHECK) $(BIN)/python -m tests.lab mutants

clean:
	rm -rf $(VENV) build dist *.egg-info
