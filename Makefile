# Needs Go (the version in go.work), git, make and bash; test-typescript also Node.js.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES  := contracts pkg services examples
PACKAGES := $(MODULES:%=./%/...)
COMMANDS := ./services/toolbus $(patsubst %/main.go,%,$(wildcard ./services/*/cmd/*/main.go ./examples/cmd/*/main.go))
BIN      := bin
TOOLS    := $(CURDIR)/.tools
GOLANGCI := v2.15.0
FUZZTIME ?= 5s

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build toolbus, every service and the examples' worker into bin/
	go build -o $(BIN)/ $(COMMANDS)

.PHONY: demo
demo: build ## play the main stories on real processes; exit 1 on any deviation
	go build -o $(BIN)/toolbus-demo ./services/e2e/demo
	$(BIN)/toolbus-demo

.PHONY: bench
bench: ## what Toolbus adds to NATS: a table and bench-results.json (BENCH="-time 20s -only call")
	go build -o $(BIN)/ ./services/toolbus ./services/bench ./services/bench/bench-worker ./services/bench/bench-responder
	$(BIN)/bench $(BENCH)

.PHONY: soak
soak: ## does toolbus up come back after a million ToolState writes and clears? 10 to 20 minutes (SOAK="-cycles 100000")
	go build -o $(BIN)/ ./services/toolbus ./services/bench/bench-soak
	$(BIN)/bench-soak $(SOAK)

.PHONY: test
test: ## run every test of the four modules, with the race detector
	go test -race -timeout 10m $(PACKAGES)

.PHONY: test-crash
test-crash: ## kill everything at every step of a job's runs, for about a minute
	go vet -tags crash ./services/e2e
	go test -race -tags crash -run 'Kill' -count=1 -timeout 10m ./services/e2e

.PHONY: test-faults
test-faults: ## crash, kill, freeze and cut off what stores state and files for some forty minutes, and check what callers saw
	go vet -tags faults ./services/files/... ./services/e2e/...
	go test -race -tags faults -run 'Long' -count=1 -timeout 60m ./services/e2e/faults
	go test -race -tags faults -run 'CrashAfterEveryWrite' -count=1 -timeout 60m ./services/files/internal/area
	go test -race -tags faults -run 'AppendersSurviveKills|FilesAreLinearizable|CallsSurviveTheirWorkers|RollingRestartFailsNoCall' -count=1 -timeout 60m ./services/e2e

.PHONY: test-large
test-large: ## send 2 GiB up and down through the CLI and measure the memory it takes; some minutes
	go vet -tags large ./services/e2e
	go test -tags large -run 'TestLargeFiles' -count=1 -timeout 20m -v ./services/e2e

.PHONY: test-typescript
test-typescript: ## run the TypeScript worker and agent against toolbus up; needs Node.js 20 and npm
	go build -o $(BIN)/ ./services/toolbus
	examples/typescript/run-tests

.PHONY: lint-fast
lint-fast: ## gofmt and go vet
	@unformatted=$$(gofmt -l $(MODULES)); \
	if [ -n "$$unformatted" ]; then echo "gofmt these files:"; echo "$$unformatted"; exit 1; fi
	go vet $(PACKAGES)

.PHONY: lint
lint: lint-fast $(TOOLS)/golangci-lint-$(GOLANGCI) ## lint-fast, and golangci-lint (the first time builds it, some minutes)
	$(TOOLS)/golangci-lint-$(GOLANGCI) run $(PACKAGES)

$(TOOLS)/golangci-lint-$(GOLANGCI):
	GOWORK=off GOBIN=$(TOOLS) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)
	mv $(TOOLS)/golangci-lint $@

# go test -fuzz takes one target of one package at a time.
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 5s)
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' $(MODULES) | while IFS=: read -r file func; do \
		name=$${func#func }; dir=./$$(dirname "$$file"); \
		echo "go test -run '^$$' -fuzz '^$$name$$' -fuzztime $(FUZZTIME) $$dir"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null; \
	done

.PHONY: modules
modules: ## build each module on its own, without the workspace
	@for m in $(MODULES); do echo "$$m: GOWORK=off go build ./..."; (cd $$m && GOWORK=off go build ./...); done

.PHONY: tidy-check
tidy-check: ## fail when a go.mod or go.sum is not tidy
	@for m in $(MODULES); do echo "$$m: go mod tidy -diff"; (cd $$m && GOWORK=off go mod tidy -diff); done

.PHONY: ci
ci: ## what CI runs
	.ci/run

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) dist
