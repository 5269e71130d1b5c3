# Each target is one command, below the text that `make help` shows. Settings stand after the target: make lab NODES=5 FAMILY=dual
include lab/settings.mk
PYTEST = sh lab/test.sh $(CACHE) $(if $(ARGS),wanted,all) $(BIN)/pytest $(PARALLEL) -rfEs $(SLOWEST) $(ARGS)

help: ; @awk -f lab/help.awk Makefile

#### To use and to change Flannelette

## .venv with everything that the other targets use, and the system packages it needs; PYTHON= chooses the Python
venv: ; @sh lab/prepare.sh

## a cluster in network namespaces until Ctrl-C; ONCE=1 tries everything and leaves; NODES= BACKEND= FAMILY= STORE= PROCESS= CLUSTERS= NETWORKS= PATH_MTU=
lab: lab-venv ; @exec $(BIN)/python -m lab

## a shell in a host of the running lab: HOST=h1, a pod: HOST=pod1
shell: lab-venv ; @$(BIN)/python -m lab.inside $(HOST)

## three pings in the running lab, from pod1 or HOST=: TO=ADDRESS
ping: lab-venv ; @$(BIN)/python -m lab.inside $(or $(HOST),pod1) $(abspath $(BIN))/python -m lab.ping $(TO)

## three hosts in containers until Ctrl-C, with a docker engine, or as root; NODES= BACKEND= STORE= PROCESS=
compose-lab: ; @exec sh deploy/compose/lab.sh

## the container images; BASE_IMAGE= another Debian, PLATFORM=linux/arm64 or linux/amd64
images: ; @sh deploy/engine.sh build sh deploy/images/build.sh

## the Debian package, in dist/; fails on an error of lintian
deb: ; @sh deploy/debian/build.sh dist

## the tests in memory, in two minutes: what to run after a change, before `make test`
test-quick: venv ; @$(BIN)/pytest -n $(or $(PROCESSES),auto) --dist loadfile --quiet -rf tests/unit $(ARGS)

## every test, the quick ones first; ARGS='-k vxlan'
test: venv ; @$(PYTEST)

## leaves what git knows
clean: ; rm -rf .venv .build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

#### For maintainers: checks of a change, and more tests

## style, layers, docstrings, protocols
lint: venv ; @sh tests/lint.sh $(CACHE)

## mypy, strict
types: venv ; @$(BIN)/mypy

## sizes and depths of the source tree, and traced ways through it, beside those of the last release
house: venv ; @$(BIN)/python -m tests.house

## every test, full counts
soak: venv ; @FLANNELETTE_SOAK=1 $(PYTEST)

## hostile bytes into every parser and call; TARGET= SECONDS= RUNS=, of each target
fuzz: venv ; @exec sh tests/fuzz/run.sh $(call options,TARGET SECONDS RUNS)

## the images and the compose lab, tried
compose-test: venv compose-tools ; @sh deploy/compose/test.sh $(BIN)/pytest -rfEs $(ARGS)

## the tests that need kernel modules, in a VM that has them (built once); ARGS='-k ipip'
vm-test: venv ; @exec $(BIN)/python -m tests.vm $(ARGS)

## a real Kubernetes in namespaces, disturbed under pings, as root (parts are built once); ARGS='-k sidecar'
kube-test: venv ; @exec $(BIN)/python -m tests.kube $(ARGS)

## a real Kubernetes in namespaces until Ctrl-C, as root; NODES= OVERLAY= BACKEND= FAMILY= PROXY= POLICY= FIREWALL= FLANNEL= VM= ONCE=
kube-lab: kube-lab-venv ; @exec $(BIN)/python -m lab.kubernetes

## many simulated nodes against real lease services, with faults; NODES= MINUTES= CHURN= ARGS='--tiers 1,2,8'
simulate: venv ; @$(BIN)/python -m lab.simulate $(call options,NODES MINUTES CHURN) $(ARGS)

## five hosts under pings, and one fault after another; MINUTES= SEED= BACKEND=vxlan,host-gw ARGS='--json figures.json'
chaos: venv ; @exec $(BIN)/python -m lab.chaos $(call options,MINUTES SEED BACKEND) $(ARGS)

## every benchmark
bench: venv ; @$(BIN)/python -m bench all

#### For maintainers: what is generated

## the generated code beside the .proto files
proto: venv ; @sh proto/generate.sh

## that it is what the .proto files give
check-generated: venv ; @sh proto/generate.sh --check

## the tables of docs/ and the parts of the chart that are made from the code
pages: venv ; @$(BIN)/python -m tests.pages.reference

## deploy/man and deploy/completion, from the help of the programs
man: pages ; @$(BIN)/python -m tests.pages.man

## the map of packages in docs/architecture.md, from their docstrings
map: venv ; @$(BIN)/python -m tests.pages.architecture

## the pictures of docs/captures: what commands print in a lab with faults
captures: venv ; @$(BIN)/python -m tests.pages.captures

## the benchmarks of docs/performance.md at every size, into its table and plot
bench-docs: venv ; @$(BIN)/python -m bench.sweep

## a node beside a real flanneld, into the first table of docs/performance.md; ROUNDS=
bench-flanneld: venv flanneld ; @$(BIN)/python -m bench.sweep --flanneld $(or $(ROUNDS),3)

## the documentation as a site, in .build/site; fails on a link that leads nowhere
site: venv ; @sh tests/pages/site.sh

#### For maintainers: releases, and tools

## wheel with each extra, source distribution and Debian package in empty roots, each program run, and what each takes; EXTRAS='ctl deb'
install-check: ; @sh deploy/release/install-check.sh $(EXTRAS)

## deploy/images/constraints*.txt: the versions in the images, and their hashes
constraints: ; @sh deploy/images/constraints.sh

## what this release leaves on three hosts, for the upgrade tests of the next one
release-state: venv ; @sh tests/upgrade/record.sh

## what tests run that is not in .venv; takes minutes, once
tools: venv ; @sh lab/tools.sh tests $(CACHE)

## grpcurl alone, fetched into the cache
grpcurl: ; @sh lab/grpcurl.sh $(CACHE)

## removes the programs, kernels and clusters that other targets have built, outside of this directory
clean-cache: ; rm -rf $(CACHE)

lab-venv: ; @sh lab/prepare.sh lab $(CACHE)
kube-lab-venv: ; @sh lab/prepare.sh kube-lab
compose-tools: ; @sh lab/tools.sh compose $(CACHE)
flanneld: ; @sh lab/flanneld.sh $(CACHE)
.PHONY: help venv lab shell ping compose-lab images deb test-quick test clean lint types house soak fuzz compose-test \
	vm-test kube-test kube-lab simulate chaos bench proto check-generated pages man map captures bench-docs bench-flanneld site \
	install-check constraints release-state tools grpcurl clean-cache lab-venv kube-lab-venv compose-tools flanneld
