#!/bin/sh
# Runs Panoply on a host with a GPU and no Rust: what is there, whether every answer is right, how fast it is.
#
#   sh run.sh [devices|check|check-cuda|check-hip|check-vulkan|check-wgpu|check-opencl|check-vectors|overlap|bench|figures|all]
#            [argument of the command…]
#
# `figures` prints what `cargo xtask figures FILE` compares with the record: sh run.sh figures > gpu.jsonl
#
# `check` runs random ops and random graphs too: PANOPLY_SEED repeats those of an earlier run, PANOPLY_OPS and PANOPLY_GRAPHS say how many.
# `check-cuda` and its like fail without a device; PANOPLY_DEVICE=required has `check` do the same.
#
# HIP's tests look for AMD's GPUs; with PANOPLY_HIP_TEST=cuda NVIDIA's run them, behind a library that has HIP's functions.
#
# CUDA's libraries are looked for where the toolkit and Python's packages put them; PANOPLY_LIBRARIES adds folders.
here=$(cd "$(dirname "$0")" && pwd)
what=${1:-all}
[ $# -gt 0 ] && shift

libraries=$PANOPLY_LIBRARIES:/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu
if command -v python3 >/dev/null 2>&1; then
    for folder in $(python3 -c 'import glob, site; [print(f) for p in site.getsitepackages() for f in sorted(glob.glob(p + "/nvidia/*/lib"))]' 2>/dev/null); do
        libraries=$libraries:$folder
    done
fi
LD_LIBRARY_PATH=$libraries:$LD_LIBRARY_PATH
XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp}
export LD_LIBRARY_PATH XDG_RUNTIME_DIR

failed=0
# The largest share of the time in turn that two chains at once may take.
OVERLAP_MAX=0.65

# Whether a program has tests whose names begin so.
has() {
    "$1" --list | grep -q "^$2"
}

# First a backend that can compiles all its kernels on all CPUs, and says how far it is; they stay in the user's cache. Then a few ops are
# checked side by side. Each op's line is printed as soon as it is done. Takes the name of one backend, or nothing for all.
check() {
    logs=$(mktemp -d)
    PANOPLY_SEED=${PANOPLY_SEED:-$(date +%s)}
    PANOPLY_OPS=${PANOPLY_OPS:-2000}
    [ -n "${1:-}" ] && PANOPLY_DEVICE=${PANOPLY_DEVICE:-required}
    export PANOPLY_SEED PANOPLY_OPS PANOPLY_DEVICE
    cat >"$logs/one.sh" <<'END'
tests=$1 op=$2 logs=$3
shift 3
PANOPLY_CASES=$op/ "$tests" --nocapture "$@" >"$logs/$op.log" 2>&1
status=$?
echo "== $(basename "$tests") ${1%%::*} $op: $(grep -E ' passed|skipped' "$logs/$op.log" | head -n 1)"
if [ $status != 0 ]; then
    grep -v 'unsupported:' "$logs/$op.log"
    touch "$logs/failed"
fi
END
    for tests in "$here"/tests-"${1:-}"*; do
        "$tests" --nocapture --exact conformance::kernels_compile_ahead | sed -un 's/^compiling/== compiling/p'
        "$tests" --nocapture --exact conformance::list_of_ops | sed -n 's/^op //p' >"$logs/ops"
        xargs -P 5 -I OP sh "$logs/one.sh" "$tests" OP "$logs" conformance::every_case_on conformance::every_claimed_case_on <"$logs/ops"
    done
    # Random graphs and random ops of every kind. Where one API was named, a device is required.
    for tests in "$here"/tests-"${1:-}"*; do
        echo "== $(basename "$tests") random ops with PANOPLY_SEED=$PANOPLY_SEED"
        "$tests" --nocapture --exact conformance::random_ops_on_every_device || failed=1
        echo "== $(basename "$tests") graphs: random ones, and of the suite's ops, with PANOPLY_SEED=$PANOPLY_SEED"
        PANOPLY_GRAPHS=${PANOPLY_GRAPHS:-300} "$tests" --nocapture conformance::random_graphs_on_ conformance::suite_graphs_on_ || failed=1
    done
    for tests in "$here"/tests-"${1:-}"*; do
        has "$tests" resident:: || continue
        xargs -P 5 -I OP sh "$logs/one.sh" "$tests" OP "$logs" resident::every_case_on resident::a_sample_of_cases_on_every_gpu <"$logs/ops"
    done
    for tests in "$here"/tests-"${1:-}"*; do
        has "$tests" vectors:: || continue
        echo "== $(basename "$tests") published vectors"
        "$tests" --test-threads 1 vectors:: || failed=1
    done
    for tests in "$here"/tests-"${1:-}"*; do
        has "$tests" overlap:: || continue
        echo "== $(basename "$tests") callers whose ops overlap"
        "$tests" --nocapture --test-threads 1 overlap:: || failed=1
    done
    case ${1:-} in
    cuda) overlap "$OVERLAP_MAX" ;;
    '') "$here/panoply" devices --json | grep -q '"cuda:0"' && overlap "$OVERLAP_MAX" ;;
    esac
    for tests in "$here"/units-"${1:-}"*; do
        echo "== $(basename "$tests")"
        "$tests" --test-threads 1 || failed=1
    done
    [ -e "$logs/failed" ] && failed=1
}

# Two callers' chains of small ops on CUDA must overlap: at once they take at most this share of the time in turn.
overlap() {
    echo "== two chains of small ops, at most ${1:-inf} of the time in turn"
    "$here/panoply" bench --chains "${1:-inf}" --api cuda || failed=1
}

# Collections over all APIs together: that each card is used through one of them, and the rate of 64 callers with one query each beside
# that of one call with 64 queries (1,000,000 rows of 128). Prints the choice, and one JSON object with the ratio.
check_vectors() {
    "$here/vectors-tests" --nocapture --test-threads 1 vectors_on_gpus:: || failed=1
}

# Every case of each GPU API, many callers, the mixed trace, and PyTorch, one JSON object per line.
figures() {
    "$here/panoply" bench --full --api cuda --json --seconds 0.3 --repeats 20
    "$here/panoply" bench --full --api vulkan --json --seconds 0.3 --repeats 200
    "$here/panoply" bench --full --api wgpu --json --seconds 0.3 --repeats 200
    "$here/panoply" bench --callers 64 --api cuda --json || failed=1
    "$here/panoply" bench --chains --api cuda --json || failed=1
    "$here/panoply" bench --trace --json || failed=1
    python3 "$here/gpu_torch.py" || failed=1
}

case $what in
devices) "$here/panoply" devices "$@" || failed=1 ;;
check)
    check
    check_vectors
    ;;
check-cuda) check cuda ;;
check-hip) check hip ;;
check-vulkan) check vulkan ;;
check-wgpu) check wgpu ;;
check-opencl) check opencl ;;
overlap) overlap "$@" ;;
check-vectors)
    PANOPLY_DEVICE=${PANOPLY_DEVICE:-required}
    export PANOPLY_DEVICE
    check_vectors
    ;;
bench) "$here/panoply" bench "$@" || failed=1 ;;
figures) figures ;;
all)
    "$here/panoply" devices || failed=1
    check
    check_vectors
    "$here/panoply" bench "$@" || failed=1
    ;;
*)
    echo "run.sh: expected devices, check, check-cuda, check-hip, check-vulkan, check-wgpu, check-opencl, check-vectors, overlap, bench, figures or all; got $what" >&2
    exit 2
    ;;
esac
exit $failed
