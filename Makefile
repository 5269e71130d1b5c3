# One line per target. Settings go behind: make lab NODES=5 BACKEND=host-gw FAMILY=dual STORE=etcd ONCE=1 JSON=lab.json
export PYTHON NODES BACKEND FAMILY STORE OVERLAY PROXY POLICY FIREWALL VM ONCE JSON TOPOLOGY CLUSTERS NETWORKS
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flannelette
export PATH := $(PATH):$(CACHE)/bin
BIN := .venv/bin
PARALLEL ?= -n 8 --dist loadfile --no-loadscope-reorder
SLOWEST := --durations=30 --durations-min=5
SETTINGS := PYTHON NODES BACKEND FAMILY STORE OVERLAY PROXY VM ONCE JSON TOPOLOGY CLUSTERS NETWORKS POLICY FIREWALL FLANNEL HOST TO \
	ARGS PARALLEL SLOWEST CACHE TARGET SECONDS RUNS MINUTES CHURN SEED BASE_IMAGE PLATFORM EXTRAS PROCESSES
upper = $(shell printf %s '$1' | tr '[:lower:]' '[:upper:]')
given := $(foreach each,$(MAKEOVERRIDES),$(firstword $(subst =, ,$(each))))
$(foreach each,$(filter-out $(SETTINGS),$(given)),$(if $(and $(findstring command line,$(origin $(each))),$(filter $(call upper,$(each)),$(SETTINGS))),$(error settings are in capitals: write $(call upper,$(each))=$($(each)), not $(each)=$($(each)))))
$(if $(TMPDIR),$(if $(wildcard $(TMPDIR)/.),,$(error there is no directory TMPDIR=$(TMPDIR): make it, or unset TMPDIR)))
.DEFAULT_GOAL := help
.PHONY: help venv lab-venv lab shell ping kube-lab-venv kube-lab test-quick test soak fuzz grpcurl tools lint house map man pages site captures types proto check-generated release-state simulate chaos bench bench-docs images deb install-check constraints compose-lab compose-test vm-test kube-test clean clean-cache

help: ; @awk -F'  ## ' '/^[a-z-]+:.*  ## / {split($$1, target, ":"); line = sprintf("%-16s", target[1]); count = split($$NF, word, " "); for (i = 1; i <= count; i++) {if (length(line) + length(word[i]) > 79) {print line; line = sprintf("%16s", "")} line = line " " word[i]} print line}' Makefile  ## this list
venv: ; @sh lab/prepare.sh  ## .venv for all of these targets, and the system packages it needs; PYTHON= chooses the Python
lab-venv: ; @sh lab/prepare.sh lab && if [ "$(BACKEND)" = aws-vpc ]; then sh lab/tools.sh cloud $(CACHE); fi
lab: lab-venv ; @exec $(BIN)/python -m lab  ## a cluster in network namespaces until Ctrl-C; ONCE=1 tries everything and leaves; NODES= BACKEND= FAMILY= STORE= CLUSTERS= NETWORKS=
shell: lab-venv ; @$(BIN)/python -m lab.inside $(HOST)  ## a shell in a host of the running lab: HOST=h1, a pod: HOST=pod1
ping: lab-venv ; @$(BIN)/python -m lab.inside $(or $(HOST),pod1) $(abspath $(BIN))/python -m lab.ping $(TO)  ## three pings in the running lab, from pod1 or HOST=: TO=ADDRESS
kube-lab-venv: ; @sh lab/prepare.sh kube-lab
kube-lab: kube-lab-venv ; @exec $(BIN)/python -m lab.kubernetes  ## a real Kubernetes in namespaces until Ctrl-C, as root; NODES= OVERLAY= BACKEND= FAMILY= PROXY= POLICY= FIREWALL= FLANNEL= VM= ONCE=
test-quick: venv ; @$(BIN)/pytest -n $(or $(PROCESSES),auto) --dist loadfile --quiet -rf tests/unit $(ARGS)  ## the tests in memory, in two minutes: what to run after a change, before `make test`
test: venv ; @sh lab/test.sh $(CACHE) $(if $(ARGS),wanted,all) $(BIN)/pytest $(PARALLEL) -rfEs $(SLOWEST) $(ARGS)  ## every test, the quick ones first; ARGS='-k vxlan'
soak: venv ; @FLANNELETTE_SOAK=1 sh lab/test.sh $(CACHE) $(if $(ARGS),wanted,all) $(BIN)/pytest $(PARALLEL) -rfEs $(SLOWEST) $(ARGS)  ## every test, full counts
fuzz: venv ; @$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[fuzz]' || true; exec $(BIN)/python -m tests.fuzz $(patsubst %,--target=%,$(TARGET)) $(if $(SECONDS),--seconds=$(SECONDS)) $(if $(RUNS),--runs=$(RUNS))  ## hostile bytes into every parser and call; TARGET= SECONDS= RUNS=, of each target
grpcurl: ; @sh lab/tools.sh grpcurl $(CACHE) && [ -x $(CACHE)/bin/grpcurl ] && echo $(CACHE)/bin/grpcurl  ## fetches grpcurl alone, into the cache
tools: venv ; @sh lab/tools.sh tests $(CACHE)  ## what tests run that is not in .venv; takes minutes, once
lint: venv ; @$(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/lint-imports && sh lab/tools.sh buf $(CACHE) && if command -v buf >/dev/null; then buf lint proto && for each in proto/released/*.binpb; do buf breaking proto --against $$each || exit; done; fi  ## style, layers, protocols
house: venv ; @$(BIN)/python -m tests.house  ## sizes, depths and stops of the source tree
map: venv ; @$(BIN)/python -m tests.pages.architecture  ## the map of packages in docs/architecture.md, from their docstrings
man: pages ; @$(BIN)/python -m tests.pages.man && $(BIN)/python -m tests.pages.completion  ## deploy/man and deploy/completion, from the help of the programs
pages: venv ; @for each in configuration metrics troubleshooting; do $(BIN)/python -m tests.pages.reference.$$each || exit; done  ## the tables of docs/ that are made from the code
site: venv ; @$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]' || exit; $(BIN)/python -m tests.pages.reference.site && NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  ## the documentation as a site, in .build/site; fails on a link that leads nowhere
captures: venv ; @$(BIN)/python -m tests.pages.captures  ## the pictures of docs/captures: what commands print in a lab with faults
types: venv ; @$(BIN)/mypy  ## mypy, strict
proto: venv ; @sh proto/generate.sh  ## the generated code beside the .proto files
check-generated: venv ; @sh proto/generate.sh --check  ## that it is what the .proto files give
release-state: venv ; @for store in etcd embedded; do $(BIN)/python -m tests.upgrade record $$store tests/golden/releases/$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)/$$store || exit; done  ## what this release leaves on three hosts, for the upgrade tests of the next one
simulate: venv ; @$(BIN)/python -m lab.simulate $(if $(NODES),--nodes=$(NODES)) $(if $(MINUTES),--minutes=$(MINUTES)) $(if $(CHURN),--churn=$(CHURN)) $(ARGS)  ## many simulated nodes against real lease services, with faults; NODES= MINUTES= CHURN= ARGS='--tiers 1,2,8'
chaos: venv ; @exec $(BIN)/python -m lab.chaos $(if $(MINUTES),--minutes=$(MINUTES)) $(if $(SEED),--seed=$(SEED)) $(if $(BACKEND),--backend=$(BACKEND)) $(ARGS)  ## five hosts under pings, and one fault after another; MINUTES= SEED= BACKEND=vxlan,host-gw ARGS='--json figures.json'
bench: venv ; @$(BIN)/python -m bench all  ## every benchmark
bench-docs: venv ; @$(BIN)/python -m bench.sweep  ## those of docs/performance.md at every size, into its table and plot
images: ; @sh deploy/engine.sh build sh deploy/images/build.sh  ## the container images; BASE_IMAGE= another Debian, PLATFORM=linux/arm64 or linux/amd64
deb: ; @sh deploy/debian/build.sh dist  ## the Debian package, in dist/; fails on an error of lintian
install-check: ; @sh deploy/release/install-check.sh $(EXTRAS)  ## wheel with each extra, source distribution and Debian package in empty roots, each program run, and what each takes; EXTRAS='ctl deb'
constraints: ; @sh deploy/images/constraints.sh  ## deploy/images/constraints*.txt: the versions in the images, and their hashes
compose-lab: ; @exec sh deploy/compose/lab.sh  ## three hosts in containers until Ctrl-C, with a docker engine, or as root; NODES= BACKEND= STORE=
compose-test: venv ; @sh lab/tools.sh grpcurl $(CACHE) && sh lab/tools.sh cloud $(CACHE) && sh deploy/compose/test.sh $(BIN)/pytest -rfEs $(ARGS)  ## the images and the compose lab, tried
vm-test: venv ; @exec $(BIN)/python -m tests.vm $(ARGS)  ## the tests that need kernel modules, in a VM that has them (built once); ARGS='-k ipip'
kube-test: venv ; @exec $(BIN)/python -m tests.kube $(ARGS)  ## a real Kubernetes in namespaces, disturbed under pings, as root (parts are built once); ARGS='-k sidecar'
clean: ; rm -rf .venv .build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache  ## leaves what git knows
clean-cache: ; rm -rf $(CACHE)  ## the programs, kernels and clusters that other targets have built, outside of this directory
