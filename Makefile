# The front door. Every target sets up what it needs; `make help` lists them.
BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CTEST_ARGS ?=

.DEFAULT_GOAL := build
.PHONY: build deps check check-quick check-gpu demo bench bench-calibrate docs install lint help clean

build: ## build the library and the command: build/draintile
	@cmake --preset release $(if $(wildcard $(BUILD)/CMakeCache.txt),--log-level=WARNING,)
	@cmake --build $(BUILD) --parallel $(JOBS)

deps: ## install the Debian packages of scripts/debian-packages.txt (as root, or with sudo)
	@scripts/deps.sh

check: deps ## all tests: release, address and undefined sanitizers, thread sanitizer, CUDA build where nvcc is
	@scripts/check.sh

check-quick: build ## the release tests only
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) $(CTEST_ARGS)

check-gpu: build ## the GPU suite: correctness, stress, short benchmark; its script exits with 77 without a GPU
	@scripts/check_gpu.sh

demo: deps build ## six schedules of one MoE layer on this machine: a table, traces, a picture
	@scripts/demo.sh

bench: deps build ## the figures that README and docs/results.md print
	@scripts/bench.sh

bench-calibrate: deps build ## the calibration pictures from the committed JSON
	@scripts/plot_calibration.sh

docs: ## tables of docs/results.md from the committed JSON
	@scripts/make_results.sh

install: build ## install library, headers, command, man page; PREFIX=/usr/local, DESTDIR=
	@cmake --install $(BUILD) --prefix $(PREFIX)

lint: build ## clang-format (check only) and clang-tidy over our C
	@scripts/lint.sh

clean: ## remove the build folders
	@rm -rf build build-debug build-asan build-tsan

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
