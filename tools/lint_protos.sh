#!/usr/bin/env bash
# Lints the contract, and compares it with main's: a change that breaks a peer of the last version fails.
set -euo pipefail
cd "$(dirname "$0")/.."

main_ref() {
    local ref
    for ref in refs/heads/main refs/remotes/origin/main; do
        if git cat-file -e "$ref:protos/buf.yaml" 2>/dev/null; then
            echo "$ref"
            return
        fi
    done
}

buf lint protos

ref=$(main_ref)
if [ -z "$ref" ]; then
    echo "buf breaking: skipped, there is no main branch with a contract to compare with"
    exit 0
fi
previous=$(mktemp -d)
trap 'rm -rf "$previous"' EXIT
git archive "$ref:protos" | tar -x -C "$previous"
if [ -z "$(find "$previous" -name '*.proto' -print -quit)" ]; then
    echo "buf breaking: skipped, main has no .proto yet"
    exit 0
fi
buf breaking protos --against "$previous"
