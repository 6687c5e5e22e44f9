#!/usr/bin/env bash
# Kernels, steps and the engine on one GPU, in under 8 minutes: `make bench-gpu`, or this script with PYTHON set.
# Needs torch and triton alone (Python 3.11 or newer), downloads nothing, installs nothing.
# Each section has its own time cap and writes its JSON as it measures; the table comes last, whatever was measured.
#   benchmarks/gpu/run.sh [--smoke] [SECTION ...]     --smoke: tiny shapes on CPU, to see that the sections run
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$root:$root/services/worker${PYTHONPATH:+:$PYTHONPATH}"
export OUT=${OUT:-$root/benchmarks/results/gpu}
cd "$root" || exit 1

smoke=
if [ "${1:-}" = --smoke ]; then
    smoke=--smoke
    export TRITON_INTERPRET=1
    shift
fi
if [ -z "$smoke" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "bench-gpu: torch sees no CUDA device here; nothing is measured (--smoke runs tiny shapes on CPU)" >&2
    exit 3
fi

declare -A cap=([ceilings]=30 [kernels]=60 [products]=45 [attention]=50 [decode]=100 [prefill]=40 [engine]=90 [peer]=50)
sections=${*:-ceilings kernels products attention decode prefill engine peer}
mkdir -p "$OUT"
for section in $sections; do
    if [ -z "${cap[$section]:-}" ]; then
        echo "bench-gpu: there is no section '$section'" >&2
        exit 2
    fi
    rm -f "$OUT/$section.json"
    timeout -k 5 "${cap[$section]}" "$python" -m "benchmarks.gpu.$section" $smoke ||
        echo "bench-gpu: $section ended with $? (its cap is ${cap[$section]} s); what it wrote is kept" >&2
done
"$python" -m benchmarks.gpu.table $smoke
