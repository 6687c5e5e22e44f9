#!/usr/bin/env bash
# Builds what a release consists of into dist/: a wheel of every distribution, a bill of materials (CycloneDX) of every image, and
# the result of an audit against known vulnerabilities. A lock that could not be audited is no release.
#   WITHOUT_AUDIT=REASON  goes on where no advisory service can be reached; the reason is kept in dist/audit.txt
set -euo pipefail
cd "$(dirname "$0")/.."

readonly DISTRIBUTIONS=(
    protos services/kit services/gateway services/policy services/router services/controlplane services/worker
    tools/workload tools/bench tools/cli tools/conformance tools/sim
)
readonly IMAGES=(gateway policy router controlplane worker cli)

fail() {
    echo "make release: $*" >&2
    exit 1
}

audit() {
    if pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --format columns >dist/audit.txt 2>&1; then
        return
    fi
    tail -n 20 dist/audit.txt >&2
    [ -n "${WITHOUT_AUDIT:-}" ] || fail "the lock has known vulnerabilities, or could not be audited (see dist/audit.txt)"
    echo "NOT AUDITED: $WITHOUT_AUDIT" >>dist/audit.txt
}

main() {
    local distribution image
    [ -z "$(git status --porcelain)" ] || fail "the working tree has changes; a release is a commit"
    rm -rf dist && mkdir -p dist/sbom
    audit
    for distribution in "${DISTRIBUTIONS[@]}"; do
        python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir dist "./$distribution"
    done
    for image in "${IMAGES[@]}"; do
        python -m tools.locked_requirements "headrace-$image" |
            cyclonedx-py requirements --output-reproducible --sv 1.6 --pyproject "$(pyproject "$image")" \
                -o "dist/sbom/headrace-$image.cdx.json" -
    done
    (cd dist && sha256sum ./*.whl sbom/*.json >SHA256SUMS)
    git rev-parse HEAD >dist/COMMIT
    ls -l dist dist/sbom
}

pyproject() {
    if [ "$1" = cli ]; then echo tools/cli/pyproject.toml; else echo "services/$1/pyproject.toml"; fi
}

main
