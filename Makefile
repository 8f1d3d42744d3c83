# The few words that people type first; `python -m dev --help` has the rest.

PYTHON ?= python3
UV_VERSION := 0.13.9
BIN := .venv/bin
OLD := .venv-airflow-3.1

# Without bytecode every process of Airflow compiles all of Airflow again: twice the time to come up.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
N ?= 1000
SEED ?= 0
TAGS ?= 50
KILLS ?= 50
DAYS ?= 30
LANDINGS ?= 500
ONLY ?=
AGAINST ?=
RUNS ?= 3
JOBS ?= 4
# A seed: the files of tests run in another order.
ORDER ?=
# Not empty: the few tests that failed are tried once more, by themselves, when all others are over.
AGAIN ?=
SUITES ?= units integration dags faults
BUDGET ?= 30
GB ?= 1

.PHONY: help setup lint test test-all docs tools classes stores s3 node test-kubernetes test-install kubernetes-tools old-airflow page-tools faults faults-broker fuzz soak soak-upkeep soak-pipelines soak-cdc soak-engines soak-kubernetes soak-values soak-brokers soak-sensors soak-events mutants demo bench bench-report bench-sensors constraints clean

help: ## Show this list
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: .venv/.ready ## Make .venv with all extras and the tools (needs Python 3.11 or newer)

lint: setup ## Check style, types, layers and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m dev.words

test: tools setup ## Run the tests that need Python and a JDK alone; SUITES="spark mirrors" for others (python -m dev suites --all)
	$(BIN)/python -m dev test --jobs $(JOBS) $(if $(ORDER),--order $(ORDER)) $(if $(AGAIN),--again) $(SUITES)

test-all: ## Run all suites, and say of each whether it passed (needs a JDK 17, Go, Node.js, git, Chromium)
	@$(MAKE) --no-print-directory test SUITES=all

test-kubernetes: ## Run Spark's drivers on a real Kubernetes of one node; built the first time, 15 minutes (root on a Debian, Go)
	@$(MAKE) --no-print-directory test SUITES=kubernetes

test-install: setup ## Install the wheel with each extra, with constraints and without, at both ends of the bounds, and land a topic in each
	LAKESTREAM_INSTALLATIONS=all $(BIN)/python -m pytest --timeout 0 tests/install

docs: setup ## Build the documentation's site into .site, and check its links
	@echo "Building the documentation's site into .site: some 20 seconds."
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file dev/mkdocs.yml

tools: # In seconds, before anything is installed.
	@$(PYTHON) -m dev.suites.tools $(SUITES)

classes: setup
	@$(BIN)/python -m dev classes

stores: s3
	@$(BIN)/python -m dev stores

s3: setup
	@$(BIN)/python -m dev stores --only s3

node: setup
	@$(BIN)/python -m dev node

kubernetes-tools: setup
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --group kubernetes

old-airflow: $(OLD)/.ready

page-tools: docs old-airflow
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --group page
	@$(OLD)/bin/uv pip install --quiet --python $(OLD)/bin/python --group page
	@$(BIN)/python -m dev browser

faults: setup ## Play N seeded sequences of faults on a model of Kafka, from SEED on; see dev/FAULTS.md
	$(BIN)/python -m tests.faults.play -n $(N) --seed $(SEED)

faults-broker: setup ## The same with topics of a real broker, slower: N=20 (needs a JDK 17)
	$(BIN)/python -m tests.faults.play -n $(N) --seed $(SEED) --broker

fuzz: setup ## Fuzz decoders with N payloads of each format, tables with N values, filters of 2 N tables, from SEED on; see docs/formats.md
	$(BIN)/python -m tests.unit.decode.fuzz -n $(N) --seed $(SEED)
	$(BIN)/python -m tests.unit.landed.sources -n $(N) --seed $(SEED)
	$(BIN)/python -m tests.unit.bounds.tables -n $$((2 * $(N))) --seed $(SEED)

soak: setup ## Spark's long runs: a million mixed records by both engines, a driver killed KILLS=50 times (needs a JDK 17)
	LAKESTREAM_SAME_RECORDS=1000000 LAKESTREAM_KILLS=$(KILLS) $(BIN)/python -m pytest --timeout 0 \
		tests/spark/test_spark_kills.py tests/spark/test_spark_fan_out_crashes.py \
		tests/spark/test_spark_frames.py tests/spark/test_spark_same_as_extract.py \
		-k 'killed_at_random and not delta or frames and killed or every_way and json-with-all'

soak-pipelines: setup ## 2,000 random pipelines, right, broken, with templates and variables: validate, load and JSON Schema agree
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest --timeout 0 -s tests/unit/pipelines/test_agreement.py -k say_the_same

soak-upkeep: setup ## DAYS=30 of landings each minute on real files, compacted by the landings: files, bytes and CPU against an ideal layout
	LAKESTREAM_DAYS=$(DAYS) $(BIN)/python -m pytest --timeout 0 -s tests/unit/maintenance/test_after_landing.py -k each_minute

soak-cdc: setup .bench/venv/.ready ## Mirrors of hostile PostgreSQL tables through N=20000 random transactions, their driver killed KILLS=50 times; TAGS=50 cuts through three mirrors under load; SEED=0 (needs a JDK 17)
	LAKESTREAM_CDC_TRANSACTIONS=$(N) LAKESTREAM_CDC_KILLS=$(KILLS) LAKESTREAM_CDC_SEED=$(SEED) $(BIN)/python -m pytest --timeout 0 \
		-s tests/mirrors/test_cdc_hostile.py
	LAKESTREAM_TAGS=$(TAGS) $(BIN)/python -m pytest --timeout 0 tests/mirrors/test_mirror_tag.py tests/matrix/test_mariadb_tag.py

soak-engines: setup ## Flink's and Connect's processes, drivers, tasks, the triggerer killed KILLS=50 times each; goes on where it was broken off; ONLY=flink, SEED=0 (needs a JDK 17)
	LAKESTREAM_SOAK=.dev/soak-engines LAKESTREAM_KILLS=$(KILLS) LAKESTREAM_SEED=$(SEED) $(BIN)/python -m pytest --timeout 0 -s \
		tests/engines/test_flink_kills.py tests/engines/test_connect_kills.py -k '$(ONLY)'

soak-kubernetes: setup node ## Drivers' and executors' pods, workers, the API server of a real Kubernetes killed KILLS=30 times; goes on where it was broken off; SEED=0 (root on a Debian, Go the first time)
	LAKESTREAM_SOAK=.dev/soak-engines LAKESTREAM_KILLS=$(if $(filter file,$(origin KILLS)),30,$(KILLS)) LAKESTREAM_SEED=$(SEED) \
		$(BIN)/python -m pytest --timeout 0 -s tests/kubernetes/test_kills.py

soak-values: setup ## N=1000 random records in JSON, in Avro and of no format by extract, group, Spark, Flink, Connect: each equal or refused; ONLY=avro, SEED=0 (needs a JDK 17)
	LAKESTREAM_RECORDS=$(N) LAKESTREAM_SEED=$(SEED) $(BIN)/python -m pytest --timeout 0 -s tests/engines/test_odd_values.py \
		-k '$(ONLY)'

soak-brokers: setup ## LANDINGS=30 of extract, group, Spark, Flink and Connect on three brokers, of which one is killed each minute; SEED=0, ONLY=extract for one of them (needs a JDK 17)
	LAKESTREAM_LANDINGS=$(if $(filter file,$(origin LANDINGS)),30,$(LANDINGS)) LAKESTREAM_SEED=$(SEED) $(BIN)/python -m pytest \
		--timeout 0 -s tests/matrix/test_brokers.py -k 'killed_and_leaders and $(or $(ONLY),killed)'

soak-sensors: setup ## The triggerer killed KILLS=20 times while sensors wait (needs a JDK 17)
	LAKESTREAM_KILLS=$(if $(filter file,$(origin KILLS)),20,$(KILLS)) $(BIN)/python -m pytest --timeout 0 \
		tests/sensors/test_sensor_kills.py

soak-events: setup ## The triggerer killed KILLS=20 times while LANDINGS=500 landings are told, on PostgreSQL (needs a JDK 17)
	LAKESTREAM_LANDINGS=$(LANDINGS) LAKESTREAM_KILLS=$(if $(filter file,$(origin KILLS)),20,$(KILLS)) \
		LAKESTREAM_AIRFLOW_DATABASE=postgresql $(BIN)/python -m pytest --timeout 0 tests/events

mutants: setup ## Put wrong changes into a copy: does a suite that they reach catch each? ONLY=lease (needs what its suites need)
	$(BIN)/python -m tests.dev.play_mutants --only '$(ONLY)'

demo: docs ## Watch real Airflow land a real Kafka topic, until Ctrl-C; ONCE=1 stops by itself, CDC=1 mirrors a database too (needs a JDK 17)
	@$(BIN)/python -m dev demo $(if $(ONCE),--once) $(if $(CDC),--cdc)

bench: setup ## Measure next to kcat, dlt, Spark: 30 minutes; ONLY=json,kcat for less; AGAINST=<commit or wheel> compares with it (needs a JDK 17)
	@$(MAKE) --no-print-directory .bench/user/.ready
	@$(MAKE) --no-print-directory .bench/venv/.ready || echo "The peers' own environment is not there: dlt is left out."
	@$(BIN)/python -m dev.bench --only '$(ONLY)' --runs $(RUNS) --budget $(BUDGET) --gigabytes $(GB) --against '$(AGAINST)'

bench-report: setup .bench/venv/.ready ## Write docs/benchmarks.md, its chart and dev/BOUNDS.md from what make bench has measured
	@$(BIN)/python -m dev.bench.report

bench-sensors: setup ## Measure what N deferred sensors cost a triggerer, within 15 minutes (needs a JDK 17)
	@$(BIN)/python -m dev.bench.sensors -n $(N)

constraints: setup ## Resolve the pins anew, after a change of pyproject.toml or dev/pins*.txt
	$(call resolve,dev/pins.txt,dev/constraints.txt)
	$(call resolve,dev/pins-airflow-3.1.txt,dev/constraints-airflow-3.1.txt)
	$(BIN)/uv pip compile dev/pins-bench.txt --python-version 3.11 \
		--upgrade --no-header --no-annotate --quiet --output-file dev/constraints-bench.txt

clean: ## Take down what `python -m dev up` started, and remove all that is not in git
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m dev down --all; fi
	rm -rf artifacts .site .venv .venv-* .dev .bench .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist

.venv/.ready: pyproject.toml dev/constraints.txt
	$(call install,.venv,dev/constraints.txt)

$(OLD)/.ready: pyproject.toml dev/constraints-airflow-3.1.txt
	$(call install,$(OLD),dev/constraints-airflow-3.1.txt)

# What a user of the extract installs, and no more: with Spark comes pandas, which pyarrow imports wherever it is there.
.bench/user/.ready: pyproject.toml dev/constraints.txt | .venv/.ready
	$(PYTHON) -m venv .bench/user
	$(BIN)/uv pip install --quiet --python .bench/user/bin/python --constraints dev/constraints.txt \
		--editable '.[protobuf]' psutil
	@touch $@

# Packages of the benchmark's peers: none of them is a dependency of ours.
.bench/venv/.ready: dev/constraints-bench.txt | .venv/.ready
	$(PYTHON) -m venv .bench/venv
	$(BIN)/uv pip install --quiet --python .bench/venv/bin/python --no-deps --requirements $<
	@touch $@

# $(1): folder of the environment, $(2): its constraints. The stamp is made last: an interrupted setup starts again.
# First exactly the pins, which needs no look at any metadata: resolving them first would build PySpark each time. Then
# the project itself, with whatever another platform needs besides.
define install
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make setup PYTHON=python3.11")'
	@echo "Installing $$(grep -c == $(2)) packages into $(1), by $(2): a minute or so."
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@$(1)/bin/uv pip install --quiet --python $(1)/bin/python --no-deps --requirements $(2)
	@$(1)/bin/uv pip install --quiet --python $(1)/bin/python --constraints $(2) --editable '.[all]' --group dev
	@touch $(1)/.ready
endef

# $(1): what is held fixed, $(2): everything, pinned. No addresses and no hashes go into it.
define resolve
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --python-version 3.11 \
		--constraints $(1) --upgrade --no-header --no-annotate --quiet --output-file $(2)
endef
