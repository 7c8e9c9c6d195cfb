# Thin on purpose: each target is one or two commands that can be typed by hand.
#
#   make demo    a simulated week of a three-region federation (sets itself up)
#   make test    every test, against the real etcd and kubectl (sets itself up)

.DEFAULT_GOAL := help
.PHONY: help demo demo-kubernetes test test-cluster scale check bench build simulate simulate-trace setup

# The real tools, as e2e/setup.sh builds them, or brought along; tests read these two names.
tool = $(or $(if $(KUBEBUILDER_ASSETS),$(wildcard $(KUBEBUILDER_ASSETS)/$(1))),$\
    $(CURDIR)/.cache/kube-tools/$(1))
export MERIDIAN_ETCD ?= $(call tool,etcd)
export MERIDIAN_KUBECTL ?= $(call tool,kubectl)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a simulated week of a three-region federation; ARGS="--serve" keeps it running
	@e2e/setup.sh build
	cargo run --profile demo -p meridian-e2e --bin meridian-playground -- $(ARGS)

test: setup ## every test of the workspace
	cargo test --workspace --all-features

test-cluster: setup ## a real member cluster until Ctrl-C: ARGS="--nodes 2 --fake-nodes 100"
	cargo build -p meridian-e2e --bin meridian-trainer --bin meridian-test-cluster
	target/debug/meridian-test-cluster $(ARGS)

demo-kubernetes: setup ## a hub, an agent and a gang on four real nodes, until Ctrl-C
	cargo build -p meridian-e2e --bins
	target/debug/meridian-test-cluster --hub --no-scheduler --nodes 4 $(ARGS)

scale: setup ## gangs on 1,000 fake nodes, one of 512 x 8 GPUs, and what the agent cannot see
	cargo build -p meridian-e2e --bins
	MERIDIAN_SCALE=full cargo test -p meridian-e2e --test scale -- --nocapture

check: ## format, lints and documentation, all without a warning
	@e2e/setup.sh build
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features

bench: setup ## all benches, or one: NAME=submit-durable; ARGS="--quick" shows that they work
	@e2e/bench/run.sh $(NAME) -- $(ARGS)

build: ## release binaries in target/release
	@e2e/setup.sh build
	cargo build --workspace --release

simulate: ## the long fault simulation: SEEDS=500
	@e2e/setup.sh build
	MERIDIAN_SEEDS=$(or $(SEEDS),500) cargo test --release -p meridian-e2e --test simulation

simulate-trace: ## a public trace through the decisions: TRACE=philly|helios|openb ARGS="--json"
	cargo build --release -p meridian-sim
	time target/release/meridian-sim $(or $(TRACE),philly) $(ARGS)

setup: ## install and build what is missing
	@e2e/setup.sh
