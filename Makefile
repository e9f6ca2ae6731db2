# The few commands people type. The logic is in scripts/ and in CMake.

RUNNER := build/release/bin/trireme

.PHONY: help setup build demo test lint format bench sanitize clean

help:
	@echo 'make demo      install what is missing, build, train a small gpt with ZeRO-3 on 2 ranks, let it write'
	@echo '               (DATA=FILE for a text of your own)'
	@echo 'make test      install what is missing, build, run every test'
	@echo 'make bench     the collectives beside Gloo and Open MPI, training steps beside PyTorch and DeepSpeed,'
	@echo '               trainings and checkpoints beside PyTorch'
	@echo 'make lint      format, layering, static analysis'
	@echo 'make sanitize  the tests of the communication under the address and thread sanitizers'

setup:
	@scripts/setup

build: setup
	@scripts/build release

demo: build
	@scripts/demo $(DATA)

test: build sanitize
	ctest --preset release

bench: build
	$(RUNNER) bench collectives --peers
	$(RUNNER) bench step --peers
	$(RUNNER) bench train --peers
	$(RUNNER) bench checkpoint --peers

sanitize: setup
	@scripts/sanitize

lint: setup
	@scripts/lint

format: setup
	@scripts/format

clean:
	rm -rf build
