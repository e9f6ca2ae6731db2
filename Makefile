# The few commands people type. The logic is in scripts/ and in CMake.

.PHONY: help setup build demo demo-faults test test-long lint format bench clean

help:
	@echo 'make demo      install what is missing, build, train a small gpt with ZeRO-3 on 2 ranks, generate text'
	@echo '               (DATA=FILE to train on your own text)'
	@echo 'make demo-faults   kill ranks of a training before your eyes, and compare its weights with those of one in peace'
	@echo 'make test      install what is missing, build, run the tests, and those with threads again under the thread sanitizer'
	@echo 'make test-long what takes longer: long training runs, the address sanitizer, repeated tests'
	@echo 'make bench     every table of the documentation for this machine, next to Gloo, Open MPI, PyTorch and'
	@echo '               DeepSpeed, into build/bench/tables.md (half an hour)'
	@echo 'make build     install what is missing, and build everything'
	@echo 'make lint      format, layering, static analysis'
	@echo 'make format    format the code'

setup:
	@scripts/setup

build: setup
	@scripts/build release

demo:
	@scripts/demo $(if $(DATA),"$(DATA)")

demo-faults:
	@scripts/demo_faults

test:
	@scripts/test

test-long:
	@scripts/test_long

bench: build
	@scripts/bench_tables

lint: setup
	@scripts/lint

format: setup
	@scripts/format

clean:
	rm -rf build
