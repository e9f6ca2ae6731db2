# The few commands people type. The logic is in scripts/ and in CMake.

RUNNER := build/release/bin/trireme

.PHONY: help setup build demo test lint format bench sanitize clean

help:
	@echo 'make demo      install what is missing, build, train with one process and with ZeRO-3 on 4 ranks'
	@echo 'make test      install what is missing, build, run every test'
	@echo 'make bench     the collectives beside Gloo and Open MPI, training steps beside PyTorch and DeepSpeed'
	@echo 'make lint      format, layering, static analysis'
	@echo 'make sanitize  the tests of the communication under the address and thread sanitizers'

setup:
	@scripts/setup

build: setup
	@scripts/build release

# The same training twice, with one process and with four: the last number is the same.
demo: build
	$(RUNNER) run -n 1 -- build/release/bin/02_data_parallel
	$(RUNNER) run -n 4 -- build/release/bin/03_zero

test: build sanitize
	ctest --preset release

bench: build
	$(RUNNER) bench collectives --peers
	$(RUNNER) bench step --peers

sanitize: setup
	@scripts/sanitize

lint: setup
	@scripts/lint

format: setup
	@scripts/format

clean:
	rm -rf build
