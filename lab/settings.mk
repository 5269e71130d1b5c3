# Settings of the targets in ../Makefile, with their defaults, and errors for those that make would pass over.
export PYTHON NODES BACKEND FAMILY STORE OVERLAY PROXY POLICY FIREWALL VM ONCE JSON TOPOLOGY CLUSTERS NETWORKS PATH_MTU
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flannelette
export PATH := $(PATH):$(CACHE)/bin
BIN := .venv/bin
PARALLEL ?= -n 8 --dist loadfile --no-loadscope-reorder
SLOWEST := --durations=30 --durations-min=5
SETTINGS := PYTHON NODES BACKEND FAMILY STORE PROCESS OVERLAY PROXY VM ONCE JSON TOPOLOGY CLUSTERS NETWORKS PATH_MTU POLICY FIREWALL FLANNEL HOST TO \
	ARGS PARALLEL SLOWEST CACHE TARGET SECONDS RUNS MINUTES CHURN SEED BASE_IMAGE PLATFORM EXTRAS PROCESSES ROUNDS
.DEFAULT_GOAL := help

upper = $(shell printf %s '$1' | tr '[:lower:]' '[:upper:]')
lower = $(shell printf %s '$1' | tr '[:upper:]' '[:lower:]')
# --nodes=5 for NODES=5, and nothing for a setting without a value
options = $(foreach each,$1,$(patsubst %,--$(call lower,$(each))=%,$($(each))))

# nodes=5 would set nothing.
given := $(foreach each,$(MAKEOVERRIDES),$(firstword $(subst =, ,$(each))))
small = $(and $(findstring command line,$(origin $1)),$(filter $(call upper,$1),$(SETTINGS)))
$(foreach each,$(filter-out $(SETTINGS),$(given)),$(if $(call small,$(each)),\
	$(error settings are in capitals: write $(call upper,$(each))=$($(each)), not $(each)=$($(each)))))
$(if $(TMPDIR),$(if $(wildcard $(TMPDIR)/.),,$(error there is no directory TMPDIR=$(TMPDIR): make it, or unset TMPDIR)))
