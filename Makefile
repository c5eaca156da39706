# Everything that is done to this project by hand or by CI. `make help` lists it.
#
# Each target makes the virtual environment that it needs, with pip and nothing else; a changed pyproject.toml
# installs anew. An environment is kept with the Python that it was made with: `make clean` to change that.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The newest usable Python of this machine; override with `make PYTHON=/path/to/python3.12 …`.
PYTHON ?= $(shell sh .ci/pythons | head -n 1 | cut -d ' ' -f 2-)
OLDEST = $(shell sh .ci/pythons | tail -n 1 | cut -d ' ' -f 2-)
VERSIONS = $(shell sh .ci/pythons | cut -d ' ' -f 1)
# $(call python,3.11): the newest of that version, which may name a patch release
python = $(shell sh .ci/pythons | awk -v wanted='$(1).' 'index($$1 ".", wanted) == 1 { print $$2; exit }')

# Of what is random: another one each time, unless it is given.
SEED ?=

# More for pytest or the benchmarks: `make test ARGS="-k trio"`, `make bench ARGS=import`.
ARGS ?=

BIN := .venv/bin
DEMO := examples/demo.py
FLEET_DEMO := examples/demo_fleet.py
OBJECT_TESTS := $(addprefix tests/unit/stores/,drivers/test_objects*.py $(addprefix test_,leases.py journals.py trios.py listings.py)) tests/conformance/test_stores.py::TestObjects -k objects
AZURITE := AZURITE=$(CURDIR)/.bench/azurite/node_modules/.bin/azurite-blob
PIP_INSTALL := -m pip install --disable-pip-version-check -q
comma := ,
EVERYTHING := demo$(comma)test$(comma)check$(comma)bench

# $(call environment,folder,python,extras,options of pip): make it unless it is there and runs, then install
define environment
	@test -n "$(2)" || { echo "no Python 3.11 or newer was found; name one with PYTHON=/path/to/python3" >&2; exit 1; }
	@$(1)/bin/python -c '' 2>/dev/null || { echo "making $(1) with $(2)"; rm -rf $(1); "$(2)" -m venv $(1); }
	@$(1)/bin/python $(PIP_INSTALL) $(4) -e '.[$(3)]'
	@touch $@
endef

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z][a-z0-9.%-]*:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F '\t' '{ printf "  make %-13s %s\n", $$1, $$2 }'

.PHONY: demo
demo: .venv-demo/.stamp  ## a training loop is killed at a random time and goes on where it was
	@.venv-demo/bin/python $(DEMO) $(ARGS)

.PHONY: demo-fleet
demo-fleet: .venv-demo-fleet/.stamp  ## two workers run a workflow; one of them is killed, and Redis: each task commits once
	@.venv-demo-fleet/bin/python $(FLEET_DEMO) $(ARGS)

.PHONY: fleet-env
fleet-env: .venv-demo/.stamp  ## .env for docker compose, with a fresh key and password; never overwrites one
	@if [ -e .env ] || [ -L .env ]; then \
		echo "There is a .env already, and what is stored is sealed with its key; nothing was changed." >&2; \
		echo "For another one: docker compose down --volumes (this forgets all sessions), rm .env, make fleet-env." >&2; \
		exit 1; fi
	@set -eu; umask 077; \
		key=$$(.venv-demo/bin/graflow-ckpt key new); password=$$(.venv-demo/bin/graflow-ckpt key new); \
		password=$${password#*:}; set -C; \
		printf '%s\n' \
			"# Secrets of docker compose; for programs on this machine: set -a; . ./.env; set +a" \
			"GRAFLOW_CKPT_KEY=$$key" \
			"GRAFLOW_CKPT_REDIS_PASSWORD=$$password" \
			"GRAFLOW_CKPT_REDIS_URL=redis://:$$password@127.0.0.1:6379/0" > .env
	@echo "wrote .env; next: docker compose up -d --build --wait"

PYTEST := -m pytest -n 2 --dist worksteal
SHORT := -m 'not crash and not slow'

.PHONY: test
test: .venv/.stamp  ## all tests, on the newest Python of this machine; prints the seed of what is generated
	@$(BIN)/python $(PYTEST) $(ARGS)

# What needs no server and no other process of a test's own; whole files, so that a change is seen where it is made.
FAST := $(addprefix tests/unit/,core engine checkpoint frontends config observers test_layers.py test_public_names.py) tests/golden

.PHONY: test-fast
test-fast: .venv/.stamp  ## within a minute: what a person runs before a commit
	@$(BIN)/python $(PYTEST) --hypothesis-profile=fast $(SHORT) $(FAST) $(ARGS)

# State machines with many examples, attacks, histories and chaos, in turns and with other seeds; `make test-long SEED=7`.
MINUTES ?= 60
.PHONY: test-long
test-long: .venv/.stamp  ## for an hour what `make test` does for a moment; MINUTES= for another time
	@$(BIN)/python -m tests.long --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: test-lowest
test-lowest: .venv-lowest/.stamp  ## unit tests and a fleet, with the lowest declared version of every dependency
	@.venv-lowest/bin/python $(PYTEST) $(SHORT) --ignore tests/unit/test_layers.py \
		tests/unit tests/acceptance/test_fleet_versions.py $(ARGS)

.PHONY: test-all
test-all:  ## all tests, on every Python of this machine from 3.11 on
	@set -e; for version in $(VERSIONS); do $(MAKE) --no-print-directory test-$$version; done

test-3.%: .venv-3.%/.stamp  ## all tests, on one Python: test-3.12, or its patch release: test-3.11.2
	@.venv-3.$*/bin/python $(PYTEST) $(ARGS)

# Another DAG and other blows every time; `make chaos SEED=7` is the run that has printed that seed.
.PHONY: chaos
chaos: .venv/.stamp  ## kills workers, stewards, pools and Redis under a DAG of 1,500 tasks; SEED= for the same again
	@$(BIN)/python -m tests.chaos.run $(if $(SEED),--seed $(SEED)) $(ARGS)

# The same attacks for the same seed; `make attacks SEED=7 ARGS="--place local"`.
.PHONY: attacks
attacks: .venv/.stamp  ## 100,000 attacks on what is stored: each is refused by name, and no code of theirs runs
	@$(BIN)/python -m tests.attacks.run $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: histories
histories: .venv/.stamp  ## 1,000 random histories of two workers, stopped and woken, on every store: one line of epochs
	@$(BIN)/python -m tests.crash.histories $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: failovers
failovers: .venv/.stamp  ## 1,000 random histories of a session in Redis whose server goes back: nothing is twice, or of two histories
	@$(BIN)/python -m tests.crash.failovers $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: test-azure
test-azure: .venv/.stamp .bench/azurite/.stamp  ## the tests of the object store once more, on an emulator of Azure (needs npm)
	@$(AZURITE) $(BIN)/python -m pytest $(OBJECT_TESTS) $(ARGS)

.PHONY: test-buckets
test-buckets: .venv/.stamp .bench/azurite/.stamp  ## a checkpoint through storage="s3", "gcs" and "azure" (needs npm)
	@$(AZURITE) $(BIN)/python -m pytest tests/acceptance/test_buckets.py $(ARGS)

.PHONY: test-google
test-google: .venv/.stamp  ## the same, in the protocol of Google's buckets
	@AS_GOOGLE=1 $(BIN)/python -m pytest $(OBJECT_TESTS) $(ARGS)

.bench/azurite/.stamp:
	@mkdir -p $(@D)
	npm install --prefix $(@D) --no-audit --no-fund --omit=optional azurite@3.37.0
	@touch $@

.PHONY: coverage
coverage: .venv/.stamp  ## what unit, integration and acceptance tests run of the package, and the floors; ARGS=unit: one
	@$(BIN)/python -m tests.measured $(ARGS)

.PHONY: check lint format-check types layers docs
check: lint format-check types layers docs  ## ruff, mypy --strict, import contracts, code in the docs

lint: .venv/.stamp
	$(BIN)/ruff check .

format-check: .venv/.stamp
	$(BIN)/ruff format --check .

types: .venv/.stamp
	$(BIN)/mypy --strict graflow_ckpt $(wildcard tests/typing) tests/house.py tests/one_task.py benchmarks

layers: .venv/.stamp
	$(BIN)/lint-imports --no-logo

docs: .venv/.stamp
	$(BIN)/python -m pytest -q tests/docs

.PHONY: format
format: .venv/.stamp  ## formats the code and mends what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: house
house: .venv/.stamp  ## how far the package is from the rules of its shape; ARGS="slivers runs": where it breaks them
	@$(BIN)/python -m tests.house $(ARGS)

.PHONY: bench
bench: .venv/.stamp  ## all benchmarks against their bars; writes benchmarks/results/
	@$(BIN)/python -m benchmarks.run $(ARGS)

.PHONY: bench-smoke
bench-smoke: .venv/.stamp  ## all benchmarks, small and short; fails on errors and gross misses only
	@$(BIN)/python -m benchmarks.run --smoke $(ARGS)

.PHONY: clean
clean:  ## removes environments, caches and what runs left behind
	rm -rf .venv .venv-demo .venv-demo-fleet .venv-lowest* .venv-3.* .bench build dist htmlcov .coverage .coverage.* \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache checkpoints
	find graflow_ckpt tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml
	$(call environment,.venv,$(PYTHON),$(EVERYTHING))

# Not $(EVERYTHING): checks and benchmarks have lowest versions of their own.
.venv-lowest/.stamp: pyproject.toml .ci/lowest
	@"$(OLDEST)" .ci/lowest > .venv-lowest.txt
	$(call environment,.venv-lowest,$(OLDEST),test,-c .venv-lowest.txt)

.venv-demo/.stamp: pyproject.toml
	$(call environment,.venv-demo,$(PYTHON),demo)

.venv-demo-fleet/.stamp: pyproject.toml
	$(call environment,.venv-demo-fleet,$(PYTHON),demo-fleet)

.venv-3.%/.stamp: pyproject.toml
	$(call environment,.venv-3.$*,$(call python,3.$*),$(EVERYTHING))
