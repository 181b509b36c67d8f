# make demo    the main job on vLLM's own scheduler: a prompt whose second send misses, and why
# make test    everything that must pass, but for
# make e2e     the tests with the real collector, Jaeger, Prometheus and object storage
# make backends    these programs, built once and kept outside of the tree: OTEL_CACHE_BACKENDS, else ~/.cache/otel-cache/backends
# make semconv    the names' module and reference page, from otel_cache/semconv/registry
# make dashboards    Grafana's dashboards and Prometheus' rules in deploy/, from the same names
# make bench   what it costs: the scheduler, the engine, the sidecar; half an hour on a machine with nothing else to do
# make conformance    the same scenarios on every vLLM version that is supported
# All do their set-up themselves; set PYTHON to choose the interpreter (3.11 to 3.14).

export PYTHON
# An import of vLLM without its bytecode cache takes a minute instead of seconds.
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH
.NOTPARALLEL:
.PHONY: setup demo test test-fast backends e2e conformance semconv dashboards lint format clean distclean

LANES := 0.28.0 0.30.0 0.33.0
ALL_VERSIONS := 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
BIN := .venv/bin

setup:
	@scripts/setup.sh venv
	@scripts/setup.sh vllm
	@for version in $(LANES); do scripts/setup.sh lane $$version || exit 1; done

demo:
	@scripts/setup.sh venv
	@scripts/setup.sh vllm
	@scripts/setup.sh lane 0.28.0
	@mkdir -p build/demo
	@echo "demo: one prompt, four sends, on the scheduler of vLLM 0.28.0" >&2
	@$(BIN)/otel-cache lab run model_case --vllm .lanes/0.28.0 --out build/demo/spans.jsonl
	@$(BIN)/otel-cache analyze build/demo/spans.jsonl

# Much of a test's time it waits for a process to start; a file's tests share what they start.
test: setup lint
	$(BIN)/pytest -n 3 --dist loadfile

test-fast:
	@scripts/setup.sh venv
	$(BIN)/pytest -n 3 --dist loadfile --without-vllm

backends:
	@scripts/setup.sh venv
	$(BIN)/python -m scripts.backends

e2e: setup backends
	$(BIN)/pytest tests/e2e

conformance:
	@scripts/setup.sh venv
	@scripts/setup.sh vllm
	@for version in $(filter-out 0.32.0,$(ALL_VERSIONS)); do scripts/setup.sh lane $$version || exit 1; done
	VLLM_VERSIONS="$(ALL_VERSIONS)" $(BIN)/pytest tests/conformance tests/signals tests/analysis/test_prediction.py tests/analysis/test_reference.py \
		tests/analysis/test_interventions.py tests/analysis/test_layouts.py tests/analysis/test_counters.py \
		tests/analysis/test_shift_reasons.py tests/analysis/test_mixed.py tests/analysis/test_keys_and_connectors.py \
		tests/analysis/test_public_reports.py

semconv:
	@scripts/setup.sh venv
	$(BIN)/python -m scripts.semconv

dashboards:
	@scripts/setup.sh venv
	$(BIN)/python -m scripts.dashboards

bench:
	@scripts/setup.sh venv
	@scripts/setup.sh vllm
	@scripts/setup.sh bench
	$(BIN)/python -m benchmarks

lint:
	@scripts/setup.sh venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format:
	@scripts/setup.sh venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

distclean: clean
	rm -rf .venv .lanes
