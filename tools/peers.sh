#!/usr/bin/env bash
# Installs the programs that benchmarks compare with, each into an environment of its own under benchmarks/peers.
set -euo pipefail
cd "$(dirname "$0")/.."

peer() {  # NAME REQUIREMENT...
    local env="benchmarks/peers/$1"
    shift
    if [ -e "$env/.installed" ]; then return; fi
    echo "installing $*"
    .venv/bin/python -m venv "$env"
    "$env/bin/python" -m pip install -q --no-input --disable-pip-version-check "$@"
    touch "$env/.installed"
}

peer litellm 'litellm[proxy]'
peer sglang-router 'sglang-router==0.3.2'
