# make          builds ./holdfast
# make test     everything that must hold before a change lands; installs what a Debian machine lacks
# The rest is listed by `make help`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

BINARY   := $(CURDIR)/holdfast
PKG      ?= ./...
RUN      ?= .
BENCH    ?= .
FUZZTIME ?= 30s
REPORTER ?= spec
# Two files of tests at a time: more would starve the ones that measure time.
E2E_JOBS ?= 2
E2E      ?= *.test.mjs

GO_FILES = $(shell find . -name '*.go' -not -path './e2e/node_modules/*')

# $(call part,NAME,COMMAND) runs COMMAND and says how long it took; its failure ends the run.
define part
@began=$$(date +%s%N); status=0; ( $(2) ) || status=$$?; \
	printf '=== %-12s %7.1f s  %s\n' '$(1)' "$$(( ($$(date +%s%N) - began) / 1000000 ))e-3" "$$([ $$status = 0 ] && echo ok || echo FAILED)"; \
	exit $$status
endef

# $(call need,NAME,DEBIAN PACKAGES,TEST) installs what is missing when it can, else says what to install. TEST tells
# whether it is there; without one, NAME is a command.
# policy-rc.d keeps a fresh package from starting its own service.
define need
@there() { $(if $(3),$(3),command -v $(1)) >/dev/null 2>&1; }; there && exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "make: $(1) is missing; install it, on Debian with: sudo apt-get install $(2)" >&2; exit 1; \
	fi; \
	echo "installing $(2)"; \
	policy=/usr/sbin/policy-rc.d; \
	if [ ! -e $$policy ]; then trap 'rm -f '$$policy EXIT; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod +x $$policy; fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2) >/dev/null; \
	there || { echo "make: $(1) is still missing" >&2; exit 1; }
endef

.PHONY: help build test clients bench hammer chaos fuzz lint clean tools check-format vet test-go test-e2e

help:
	@printf '%s\n' \
		'build   a static ./holdfast' \
		'test    format, vet, Go tests with the race detector, end-to-end tests' \
		'clients outside clients, Python and Go; installs what is missing' \
		'bench   Go benchmarks                  (BENCH=regexp PKG=./store)' \
		'hammer  end-to-end tests, long forms   (E2E=store.test.mjs)' \
		'chaos   Go tests, long forms           (RUN=regexp PKG=./hammer)' \
		'fuzz    each fuzz target in turn       (FUZZTIME=30s)' \
		'lint    golangci-lint, if it is there' \
		'clean   removes what the others made'

build:
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o $(BINARY) .

test:
	$(call part,tools,$(MAKE) tools)
	$(call part,format,$(MAKE) check-format)
	$(call part,vet,$(MAKE) vet)
	$(call part,go test,$(MAKE) test-go)
	$(call part,build,$(MAKE) build)
	$(call part,end to end,$(MAKE) test-e2e)

tools:
	$(call need,git,git)
	$(call need,redis-server,redis-server)
	$(call need,gcc,gcc libc6-dev)
	@for tool in go node npm; do command -v $$tool >/dev/null || { echo "make: $$tool is missing; install it first" >&2; exit 1; }; done
	@$(MAKE) e2e/node_modules/.package-lock.json

# npm writes this file at the end of an installation: missing or older than the lock means install.
e2e/node_modules/.package-lock.json: e2e/package.json e2e/package-lock.json
	cd e2e && npm ci --no-audit --no-fund
	@touch $@

check-format:
	@unformatted=$$(gofmt -l $(GO_FILES)); [ -z "$$unformatted" ] || { echo "not formatted by gofmt:"; echo "$$unformatted"; exit 1; }

vet:
	go vet ./...

# The race detector needs cgo, whatever the machine's default is.
test-go:
	CGO_ENABLED=1 go test -race -timeout 6m ./...
	go test ./sockets # has other system calls without the race detector

test-e2e: e2e/node_modules/.package-lock.json
	cd e2e && HOLDFAST_BIN=$${HOLDFAST_BIN:-$(BINARY)} node --test --test-concurrency=$(E2E_JOBS) --test-reporter=$(REPORTER) $(E2E)

# test-e2e leaves out the clients that the machine lacks; here they have to be there.
clients: tools build
	$(call need,python-socketio,python3-socketio python3-aiohttp python3-websocket python3-requests,/usr/bin/python3 -c 'import socketio; import aiohttp; import websocket; import requests')
	cd e2e/clients/go && go mod download && go vet ./...
	$(call part,clients,HOLDFAST_CLIENTS=1 $(MAKE) test-e2e E2E=clients.test.mjs)

bench:
	go test -run '^$$' -bench '$(BENCH)' -benchmem $(PKG)

# With the race detector in the servers; the tests look for its reports.
hammer: tools
	CGO_ENABLED=1 go build -race -o $(BINARY)-race .
	$(call part,hammer,HOLDFAST_BIN=$(BINARY)-race HOLDFAST_LONG=1 $(MAKE) test-e2e)

chaos: tools
	$(call part,chaos,HOLDFAST_LONG=1 CGO_ENABLED=1 go test -race -count=1 -timeout 60m -run '$(RUN)' $(PKG))

fuzz:
	@for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "=== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

lint: check-format vet
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else echo "golangci-lint is not installed: only gofmt and go vet were run"; fi

clean:
	rm -rf $(BINARY) $(BINARY)-race e2e/node_modules
