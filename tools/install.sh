#!/usr/bin/env bash
# Creates .venv and installs every distribution of this repository into it, editable, under the one lock.
#   PYTHON       an interpreter to use instead of the first of python3.12, python3.11, python3 that fits
#   TORCH_INDEX  an extra package index, for example one that carries CPU-only torch wheels
set -euo pipefail
cd "$(dirname "$0")/.."

readonly STAMP=.venv/.installed
readonly DISTRIBUTIONS=(
    protos services/kit services/gateway services/policy services/router services/controlplane
    "services/worker[engine]" tools/workload tools/bench tools/cli "tools/conformance[grpc]" tools/sim
)

fail() {
    echo "make install: $*" >&2
    exit 1
}

# Version managers leave commands on the PATH that cannot start, so a candidate counts only once it has run.
fits() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1; }

has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

pick_python() {
    local candidate without_venv=""
    for candidate in ${PYTHON:-python3.12 python3.11 python3}; do
        fits "$candidate" || continue
        if has_venv "$candidate"; then
            echo "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv has no venv module; on Debian and Ubuntu: apt-get install $(basename "$without_venv")-venv"
    fi
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is not a Python 3.12 or 3.11 that runs"
    fi
    fail "Python 3.12 or 3.11 is needed and none was found; PYTHON=... names one"
}

create_venv() {
    local python
    python=$(pick_python)
    echo "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv || fail "$python could not create .venv"
}

pip_install() {
    .venv/bin/python -m pip install --no-input --disable-pip-version-check -c constraints.txt "$@"
}

main() {
    local options=(--no-build-isolation) editables=() distribution
    # The first time shows what is fetched; afterwards there is little to see.
    if [ -e "$STAMP" ]; then options+=(-q); fi
    if [ -n "${TORCH_INDEX:-}" ]; then options+=(--extra-index-url "$TORCH_INDEX"); fi
    for distribution in "${DISTRIBUTIONS[@]}"; do editables+=(-e "./$distribution"); done

    fits .venv/bin/python || create_venv
    rm -f "$STAMP"
    # Isolated builds would fetch their own build tools and ignore the lock: these are the build tools, locked.
    pip_install -q pip setuptools hatchling editables grpcio-tools
    pip_install "${options[@]}" "${editables[@]}" --group dev
    touch "$STAMP"
}

main
