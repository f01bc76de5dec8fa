# Every target sets up what it needs on a Debian 12 machine with Go 1.26.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
TOOL := $(GO) tool -modfile=internal/tools/go.mod
# Flags for go test on top of those that every run of the suite has, such as -v.
TESTFLAGS ?=
# The race detector makes the tests about five times slower; a package that needs longer than this hangs.
TIMEOUT ?= 15m
FUZZTIME ?= 20s
BENCHTIME ?= 1s
PKG ?= ./...
# Tests mostly wait, for leases to end and for servers: more of a package's may run at a
# time than there are cores.
PARALLEL ?= 4
# Modules of their own, so that what they need is not in go.mod.
MODULES := adapters/gocronlock benchmarks/lockbench
# Of make soak: what is run, for how long or how often, and where the figures go.
AREA ?=
SOAK ?= $(or $(SOAK_OF_$(AREA)),1h)
RESULT ?= soak-$(AREA).json
AREAS := store leader switch degradation clocks overhead
SOAK_store := -run='^TestCrowd$$' -parallel=3 ./store/gormstore
SOAK_leader := -run='^TestLeaderFaults$$' ./internal/e2e
SOAK_OF_leader := 50
SOAK_degradation := -run='^TestDegraded$$' ./internal/e2e
SOAK_OF_degradation := 30s
SOAK_switch := -p=1 -run='^Test(Centre|Memory|SQLite|Postgres)$$/a_fleet_turns|^TestSwitchOfAllWorkers$$|^TestSwitchByFileAndByRequest$$' ./scheduler/switchwatch/... ./cmd/solotick
SOAK_OF_switch := 100
SOAK_clocks := -run='^TestSkewedClocks$$' ./internal/lockfaults
SOAK_OF_clocks := 1
SOAK_overhead := -run='^TestOverhead$$' ./scheduler/tracing
SOAK_OF_overhead := 200
# Flags of make bench-locks and bench-store, such as -quick, -json or -only=redis.
BENCHFLAGS ?=

# A missing server fails a test instead of skipping it.
export SOLOTICK_REQUIRE_SERVICES ?= 1

# Files of the tests and of their servers lie in memory where it has room: a disk
# that stalls while a linker writes makes every lease on it end, and proves nothing.
MEMORY := $(shell findmnt -no OPTIONS /dev/shm 2>/dev/null | grep -qv noexec && \
	[ "$$(df --output=avail -BM /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9)" -ge 8000 ] 2>/dev/null && echo /dev/shm)
ifneq ($(MEMORY),)
export GOTMPDIR := $(or $(GOTMPDIR),$(TMPDIR),/tmp)
export TMPDIR := $(MEMORY)
endif

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-12s %s\n", $$1, $$2}'

.PHONY: deps
deps: ## Install what the tests need and the machine lacks (gcc, for the race detector; the servers) and fetch the modules
	@if ! command -v gcc >/dev/null || ! printf '#include <stdlib.h>\nint main(void){return 0;}\n' | gcc -x c -o /dev/null - 2>/dev/null; then \
		echo "installing gcc and libc6-dev"; \
		sudo=; if [ "$$(id -u)" != 0 ]; then sudo=sudo; fi; \
		$$sudo apt-get update -q </dev/null; \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends gcc libc6-dev </dev/null; \
	fi
	@$(GO) mod download
	@internal/testenv/deps.sh $(GO)
	@for module in $(MODULES); do (cd $$module && $(GO) mod download) || exit 1; done

.PHONY: tidy
tidy: ## Bring go.mod and go.sum of all modules in order
	$(GO) mod tidy
	for module in internal/tools $(MODULES); do (cd $$module && $(GO) mod tidy) || exit 1; done

.PHONY: fmt
fmt: ## Format the code
	$(TOOL) golangci-lint fmt

.PHONY: lint
lint: ## Check formatting, the chosen linters and go.mod (the first run builds the linters: some minutes)
	$(TOOL) golangci-lint config verify
	$(TOOL) golangci-lint run
	$(GO) mod tidy -diff
	for module in $(MODULES); do (cd $$module && \
		$(GO) tool -modfile=$(CURDIR)/internal/tools/go.mod golangci-lint run -c $(CURDIR)/.golangci.yml && \
		$(GO) mod tidy -diff) || exit 1; done

.PHONY: test
test: deps ## Run the whole suite under the race detector, in random order
	@echo "compiling first: no test that waits for a lease runs beside the compiler"
	@CGO_ENABLED=1 $(GO) list -race -test -export $(PKG) >/dev/null
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -parallel=$(PARALLEL) -timeout=$(TIMEOUT) $(TESTFLAGS) $(PKG)
	$(MAKE) modules

.PHONY: modules
modules: ## Vet and test the modules of their own: adapters and benchmarks
	for module in $(MODULES); do (cd $$module && $(GO) vet ./... && \
		CGO_ENABLED=1 $(GO) test -race -shuffle=on -timeout=$(TIMEOUT) $(TESTFLAGS) ./...) || exit 1; done

.PHONY: short
short: ## Run the quick tests, without the race detector
	$(GO) test -short -shuffle=on -timeout=2m $(TESTFLAGS) $(PKG)

.PHONY: race
race: deps ## Run the whole suite three times over, to find what fails now and then
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -count=3 -timeout=15m $(TESTFLAGS) $(PKG)

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME
	@grep -rlE --include='*_test.go' '^func Fuzz' . | while read -r file; do \
		grep -oE '^func Fuzz[A-Za-z0-9_]*' "$$file" | while read -r _ name; do \
			echo "$$(dirname "$$file") $$name"; \
			$(GO) test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) "$$(dirname "$$file")" </dev/null; \
		done; \
	done

.PHONY: bench
bench: ## Run the benchmarks
	$(GO) test -run='^$$' -bench=. -benchmem -benchtime=$(BENCHTIME) $(TESTFLAGS) $(PKG)

.PHONY: bench-locks
bench-locks: deps ## Measure the lock backends beside other libraries and the bare protocols (BENCHFLAGS=-quick, -json, -only=redis)
	cd benchmarks/lockbench && $(GO) run . $(BENCHFLAGS)

.PHONY: bench-store
bench-store: deps ## Measure the store and the guard beside the same statements by hand, and beside many finished rows (BENCHFLAGS=-quick, -json, -rows=5000000)
	$(GO) run ./benchmarks/storebench $(BENCHFLAGS)

.PHONY: soak
soak: deps ## Run the long form of what the suite shows in short: AREA=store for SOAK=1h, AREA=leader for SOAK=50 faults, AREA=degradation with outages of SOAK=30s, AREA=switch for SOAK=100 throws, AREA=clocks once on every lock backend with processes whose wall clocks differ, AREA=overhead for SOAK=200 comparisons of ticks with metrics, traces and logs; the figures go to RESULT
	$(if $(SOAK_$(AREA)),,$(error AREA is one of: $(AREAS)))
	SOLOTICK_SOAK=$(SOAK) SOLOTICK_SOAK_RESULT=$(abspath $(RESULT)) $(GO) test -v -count=1 -timeout=0 $(TESTFLAGS) $(SOAK_$(AREA))

.PHONY: mutation
mutation: deps ## Break every safety guard in turn and demand that the tests notice (GUARD=name for one)
	$(GO) run ./internal/mutation/mutate $(if $(GUARD),-guard=$(GUARD))

.PHONY: cover
cover: ## Measure how much of the code the whole suite reaches, into coverage.out
	$(GO) test -shuffle=on -timeout=$(TIMEOUT) -coverpkg=./... -coverprofile=coverage.out $(TESTFLAGS) $(PKG)
	$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what is linked (needs the network)
	$(TOOL) govulncheck ./...

.PHONY: examples
examples: ## Build and run the examples as their tests do
	$(GO) test -shuffle=on -timeout=$(TIMEOUT) $(TESTFLAGS) ./examples/...

.PHONY: docs-check
docs-check: ## Check the links in the Markdown files and the sample configurations
	$(GO) test -count=1 -run='^TestMarkdown' ./internal/archtest
	$(GO) test -count=1 ./configs/...

.PHONY: build
build: ## Build bin/solotick
	$(GO) build -trimpath -o bin/solotick ./cmd/solotick

.PHONY: all
all: build lint test mutation ## Everything that a change must pass
