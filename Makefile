# The few commands people type. The logic is in scripts/ and in CMake.

RUNNER := build/release/bin/trireme

.PHONY: help setup build demo test test-long lint format bench clean

help:
	@echo 'make demo      install what is missing, build, train a small gpt with ZeRO-3 on 2 ranks, let it write'
	@echo '               (DATA=FILE for a text of your own)'
	@echo 'make test      install what is missing, build, run the tests, those with threads under the thread sanitizer too'
	@echo 'make test-long what takes longer: long trainings, the address sanitizer, the tests again and again'
	@echo 'make bench     the collectives beside Gloo and Open MPI, training steps beside PyTorch and DeepSpeed,'
	@echo '               trainings and checkpoints beside PyTorch'
	@echo 'make lint      format, layering, static analysis'

setup:
	@scripts/setup

build: setup
	@scripts/build release

demo:
	@scripts/demo $(DATA)

test:
	@scripts/test

test-long:
	@scripts/test_long

bench: build
	$(RUNNER) bench collectives --peers
	$(RUNNER) bench step --peers
	$(RUNNER) bench train --peers
	$(RUNNER) bench checkpoint --peers

lint: setup
	@scripts/lint

format: setup
	@scripts/format

clean:
	rm -rf build
