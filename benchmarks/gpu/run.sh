#!/usr/bin/env bash
# The engine, its steps and its kernels on one GPU, in under 8 minutes: `make bench-gpu`, or this script with PYTHON set.
# Needs torch and triton alone (Python 3.11 or newer), downloads nothing, installs nothing.
# What is worth most comes first. Each section is a process with a time cap of its own and writes OUT/gpu/SECTION.json
# with every row that it measures; OUT/gpu.json has all of them after each section. The table comes last.
#   benchmarks/gpu/run.sh [--smoke] [SECTION ...]     OUT: benchmarks/results unless set
#   --smoke: tiny shapes on CPU, to see that the sections run; OUT is a new folder unless set. Triton's interpreter does
#            it, and that of triton 3.6 needs numpy below 2.4
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$root:$root/services/worker${PYTHONPATH:+:$PYTHONPATH}"
cd "$root" || exit 1

smoke=
if [ "${1:-}" = --smoke ]; then
    smoke=--smoke
    export TRITON_INTERPRET=1
    OUT=${OUT:-$(mktemp -d)}
    shift
fi
export OUT=${OUT:-$root/benchmarks/results}
if [ -z "$smoke" ] && ! timeout 100 "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "bench-gpu: torch sees no CUDA device here; nothing is measured (--smoke runs tiny shapes on CPU)" >&2
    exit 3
fi

declare -A cap=([ceilings]=30 [decode]=100 [engine]=110 [prefill]=40 [attention]=50 [peer]=50 [kernels]=80)
sections=${*:-ceilings decode engine prefill attention peer kernels}
for section in $sections; do
    if [ -z "${cap[$section]:-}" ]; then
        echo "bench-gpu: there is no section '$section'" >&2
        exit 2
    fi
done
mkdir -p "$OUT/gpu"
for section in $sections; do
    rm -f "$OUT/gpu/$section.json"
done
for section in $sections; do
    timeout -k 5 "${cap[$section]}" "$python" -m "benchmarks.gpu.$section" $smoke ||
        echo "bench-gpu: $section ended with $? (its cap is ${cap[$section]} s); what it wrote is kept" >&2
    "$python" -m benchmarks.gpu.table >/dev/null
done
"$python" -m benchmarks.gpu.table
echo "bench-gpu: $OUT/gpu.json"
