# Pilothouse: `make help` lists what there is to make.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --abbrev=12 --dirty 2>/dev/null || echo unknown)
LDFLAGS  = -s -w -X main.version=$(VERSION)

# The linter's version and the checksums of all it is built from are in hack/lint/go.mod and go.sum.
GOLANGCI_VERSION = $(shell awk '$$1 == "github.com/golangci/golangci-lint/v2" { print $$2 }' hack/lint/go.mod)
GOLANGCI         = .tools/golangci-lint-$(GOLANGCI_VERSION)

# The time of every file of a release. https://reproducible-builds.org/specs/source-date-epoch/
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)

# A path given by the user stays as it is; all programs and tests below see it.
export ENVOY

# Packages whose tests start real Envoys or need network namespaces: run without the race detector, once everything else is
# known to be good.
SLOW = ./test/... ./internal/lab/...
# Tests wait as much as they compute: this many packages run at a time, which is more than the processors of a small machine.
AT_A_TIME = 3
# The conformance suite is a target of its own.
CONFORMANCE = $(shell $(GO) list ./test/kube/conformance)
FAST = $(shell $(GO) list ./... | grep -vE "/test/|/internal/lab/")

# The race detector needs a C compiler; where there is none the tests run without it.
UNIT = $(if $(shell command -v $${CC:-cc} 2>/dev/null),race,unit)

.DEFAULT_GOAL := help
.PHONY: help build tools kube before deps demo demo-kube cast test check lint fmt vet unit race e2e test-charts test-prometheus test-conformance soak bench bench-matrix pgo fuzz docs golden golden-charts charts images deb rpm release clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build pilot-agent, pilot-discovery and pilotctl (and the sample app) into bin/
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -pgo=hack/pgo/pilot-discovery.pgo -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/ ./cmd/... ./samples/app

tools: ## fetch the pinned Envoy into .tools/ (ENVOY=/path overrides it)
	@hack/tools.sh

kube: ## build the Kubernetes control plane of the tests into .tools/ (4 to 8 minutes the first time)
	@hack/kube.sh

before: ## build the agent and pilot-discovery of the version before, from git's history, into .tools/
	@hack/before.sh

deps: ## install the programs that end-to-end tests compare against (iptables, nft), and Chromium, where apt-get can
	@hack/test-deps.sh

demo: ## a whole mesh on this machine, with scenarios whose results are checked (needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make demo: the demo makes network namespaces and needs root: run 'sudo make demo', or 'sudo env ENVOY=/path make demo'" >&2; exit 1; }
	@$(MAKE) --no-print-directory build tools
	bin/pilotctl demo $(DEMO_FLAGS)

demo-kube: ## the same scenarios in a Kubernetes cluster on this machine, with the Helm chart installed (needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make demo-kube: the demo makes network namespaces and needs root: run 'sudo make demo-kube'" >&2; exit 1; }
	@$(MAKE) --no-print-directory build tools kube
	$(GO) build -o bin/demo-kube ./test/kube/demo
	bin/demo-kube $(DEMO_FLAGS)

cast: ## record the demo as docs/demo.cast, which asciinema plays (needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make cast: the demo makes network namespaces and needs root: run 'sudo make cast'" >&2; exit 1; }
	@$(MAKE) --no-print-directory build tools
	$(GO) build -o bin/cast ./hack/cast
	@tmp=$$(mktemp -d) && chmod 755 $$tmp && TMPDIR=$$tmp bin/cast -o docs/demo.cast -title 'pilotctl demo' -columns 96 -rows 36 bin/pilotctl demo --configDir samples/bookshop --pace 700ms; \
		code=$$?; rm -rf "$$tmp"; exit $$code

test: ## everything that CI runs: format, vet, linters, all tests, a release, the demos (needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make test: the end-to-end tests make network namespaces and need root: run 'sudo make test'" >&2; exit 1; }
	@$(MAKE) --no-print-directory fmt vet tools build $(UNIT) lint test-charts test-prometheus e2e release
	bin/pilotctl demo
	@$(MAKE) --no-print-directory demo-kube

check: fmt vet lint ## format, vet and the linters

fmt: ## fail if a Go file is not formatted
	@files=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$files" ] || { echo "gofmt these files:"; echo "$$files"; exit 1; }

vet: ## go vet
	$(GO) vet ./...

lint: $(GOLANGCI) ## golangci-lint, pinned, built into .tools on first use (some minutes)
	$(GOLANGCI) run --allow-parallel-runners ./...

$(GOLANGCI):
	@mkdir -p .tools
	$(GO) build -C hack/lint -trimpath -ldflags '-s -w' -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

unit: tools ## the tests of single packages, and the rules of the architecture
	@$(GO) test -count=1 -timeout 10m $(FAST)

# Tests that compute for minutes on one goroutine, where the race detector has nothing to find and makes them many times
# slower: `make race` runs them without it.
SERIAL = TestAgreesWithEnvoy TestDecisionsAreIstios TestEveryFieldIsAppliedOrNamed \
	TestEveryFieldOfTheGatewayAPIIsAppliedOrNamed TestEveryObservedInjection TestEveryOrderOfRequestsAndViews \
	TestFindsBrokenRules TestGolden TestInjectingTwiceChangesNothing TestInjectingTwiceChangesNothingWhateverIsSet \
	TestProblemsAreLoggedAsFromScratch TestSilentFieldIsDetected TestThePageAgreesWithTheSimulation \
	TestWhatIsRememberedChangesNothing
# Random tests, with a subtest for each seed: `make race` runs all seeds without the race detector, and the first three with it.
SEEDS = TestDerivedScopesAreAsWholeOnes TestIncrementalEqualsFromScratch TestViewsAreThoseFromScratch \
	TestViewsWithIdleClassesAreThoseFromScratch TestWhyAndDependentsAgree
any = ^($(subst $() ,|,$(strip $(1))))$$
# A name that no test has costs nothing: what is left out with the race detector is what these patterns match, and so is
# what runs without it.
WITHOUT_RACE = $(shell grep -rlE --include='*_test.go' '^func ($(subst $() ,|,$(strip $(SERIAL) $(SEEDS))))\b' cmd internal | xargs -n1 dirname | sort -u | sed 's|^|./|')

# Packages whose tests take the longest begin first, so that none of them runs alone at the end.
LONGEST = %/cmd/pilot-agent %/cmd/pilotctl %/internal/discovery/xds %/internal/discovery/compile %/internal/discovery
longest_first = $(filter $(LONGEST),$(1)) $(filter-out $(LONGEST),$(1))

# The rules of the architecture read source: nothing in them runs concurrently.
race: tools ## the same under the race detector (needs a C compiler)
	@$(GO) test -count=1 -timeout 10m .
	@$(GO) test -count=1 -timeout 10m -run '$(call any,$(SERIAL) $(SEEDS))' $(WITHOUT_RACE)
	@$(GO) test -race -count=1 -p $(AT_A_TIME) -timeout 15m -skip '$(call any,$(SERIAL))|$(call any,$(SEEDS))/^([3-9]|[1-9][0-9]+)$$' $(call longest_first,$(filter-out $(shell $(GO) list .),$(FAST)))

e2e: tools kube before build deps ## end-to-end tests: real Envoys in network namespaces (needs root)
	$(GO) test -count=1 -p $(AT_A_TIME) -timeout 40m $(filter-out $(CONFORMANCE),$(shell $(GO) list $(SLOW)))

test-charts: kube ## the tests of the Helm charts, a module of its own with Helm's library
	$(GO) test -C test/charts -count=1 -timeout 15m ./...

test-prometheus: ## the alerts and the board in Prometheus's own engine, a module of its own with its library
	$(GO) test -C test/prometheus -count=1 -timeout 10m ./...

test-conformance: tools kube build ## the conformance suite of the Gateway API against the charts, in a cluster (needs root; REPORT names a file for the report)
	$(GO) test ./test/kube/conformance -count=1 -timeout 45m -v -args $(if $(REPORT),-report '$(abspath $(REPORT))')

soak: tools kube before build deps ## long random, fault and fuzz tests, for SOAK_MINUTES (default 60; needs root)
	@hack/soak.sh $(or $(SOAK_MINUTES),60)

bench: tools build ## the benchmarks of test/bench, and 100 streams under load (XDSLOAD_FLAGS changes that)
	$(GO) test -run '^$$' -bench . -benchmem ./test/bench/...
	$(GO) test -run '^$$' -bench 'Certificates|WithoutDiscovery' -benchtime 1x -timeout 20m ./test/e2e
	$(GO) run ./test/xdsload -streams 100 -services 200 $(XDSLOAD_FLAGS)

pgo: build ## profile pilot-discovery under load; the compiler optimizes by that (some minutes, writes hack/pgo/)
	@hack/pgo.sh

bench-matrix: build ## tables of test/xdsload with up to 5,000 streams, as Markdown (XDSLOAD_MATRIX gives other runs)
	$(GO) run ./test/xdsload -matrix "$(or $(XDSLOAD_MATRIX),standard)" $(XDSLOAD_FLAGS)

fuzz: tools ## every fuzz test for FUZZTIME (default 15s) each
	@hack/fuzz.sh $(or $(FUZZTIME),15s)

docs: ## rewrite docs/settings.md from the tables in internal/settings
	$(GO) test -count=1 ./internal/settings -run PageIsCurrent -update

golden: tools ## rewrite the golden files; read the diff before committing
	$(GO) test -count=1 $(shell grep -rlE --include='*_test.go' 'flag\.Bool\("update"|golden"' internal 2>/dev/null | xargs -r -n1 dirname | sort -u | sed 's|^|./|') -update

golden-charts: ## rewrite the golden files of the Helm charts and the tables of their values; read the diff before committing
	$(GO) test -C test/charts -count=1 . -update

charts: ## pack the Helm charts, with Istio's CustomResourceDefinitions, into dist/charts
	@$(GO) run ./hack/release -charts -version '$(VERSION)' -epoch '$(SOURCE_DATE_EPOCH)' -o dist/charts

images: ## build the images pilothouse/discovery and pilothouse/agent with podman, docker or buildah (HUB names another registry)
	@HUB='$(HUB)' VERSION='$(VERSION)' ENGINE='$(ENGINE)' hack/images.sh

deb: tools ## the package of virtual machines for dpkg, with pilot-agent and Envoy, in dist/packages
rpm: tools ## the same for rpm
deb rpm:
	@VERSION='$(VERSION)' SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' hack/packages.sh $@

release: ## the files of a release for linux on amd64 and arm64, in dist/ (VERSION=v1.2.3 names it)
	@$(GO) run ./hack/release -version '$(VERSION)' -epoch '$(SOURCE_DATE_EPOCH)' -o dist

clean: ## remove what was built (not .tools)
	rm -rf bin dist
