#!/bin/sh
# test_train.sh - `thinwire train` as a user runs it: sh test_train.sh PATH-TO-THINWIRE [MPIRUN]
#
# Replicas equal, the same parameters with threads and processes, a run that was killed and resumed
# ends bitwise like one that was not, damaged checkpoints are refused, a diverging run stops with a
# hint, bad data and unwritable files get one clear line. Prints each failure; ends with their number.

if [ $# -lt 1 ]; then
    echo "usage: sh test_train.sh PATH-TO-THINWIRE [MPIRUN]" >&2
    exit 2
fi
thinwire=$1
mpirun=${2:-mpirun}
unset OMPI_COMM_WORLD_SIZE PMI_SIZE PMIX_RANK
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    sed 's/^/    stdout: /' "$dir/out" | head -5
    sed 's/^/    stderr: /' "$dir/err" | head -5
}

small="--limit 2000 --test-limit 200 --batch 8"
# train ARGS...: status in $status, output in $dir/out and $dir/err
train() {
    # shellcheck disable=SC2086 # options are words
    "$thinwire" train $small "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}
succeeds() {
    train "$@"
    [ $status -eq 0 ] || fail "train $*: status $status, expected 0"
}
# refused STATUS TEXT ARGS...: one line on stderr that holds TEXT
refused() {
    expected=$1 text=$2
    shift 2
    train "$@"
    [ $status -eq "$expected" ] || fail "train $*: status $status, expected $expected"
    [ "$(grep -c '^thinwire:' "$dir/err")" -eq 1 ] || fail "train $*: expected one line"
    grep -q -- "$text" "$dir/err" || fail "train $*: no '$text'"
}
hash() { sed -n 's/^replicas bitwise equal, hash \([0-9a-f]*\);.*/\1/p' "$dir/out"; }
same() { # same WHAT A B
    [ -n "$2" ] && [ "$2" = "$3" ] || fail "$1: $2 and $3 differ"
}

if "$thinwire" train 2>&1 --steps 1 --limit 64 --test-limit 64 --batch 8 | grep -q "has no trainer"; then
    echo "SKIP: this build has no trainer; 'make deps' installs what it needs"
    exit 0
fi

# ---- every scheme: replicas equal, log readable, timeline readable
for scheme in dense topka topkdsa gtopk gaussiank dgc randomk oktopk; do
    succeeds --steps 6 --ranks 3 --scheme $scheme --log "$dir/$scheme.jsonl" --trace "$dir/trace" \
        --snapshots 3
    [ -n "$(hash)" ] || fail "$scheme: no hash of equal replicas"
done
python3 - "$dir/oktopk.jsonl" "$dir/trace" <<'PY' || fail "log or timeline"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
kinds = [row["kind"] for row in rows]
assert kinds[0] == "run" and kinds[-1] == "end", kinds
assert kinds.count("step") == 6 and kinds.count("snapshot") == 2, kinds
steps = [row for row in rows if row["kind"] == "step"]
assert all(row["loss"] > 0 and row["payload_sent"] > 0 and row["k"] > 0 for row in steps)
shot = [row for row in rows if row["kind"] == "snapshot"][1]
assert len(shot["counts"]) == 64 and sum(shot["counts"]) == shot["n"]
assert 0 <= shot["contraction"] <= shot["bound_topk"] <= shot["bound_random"] <= 1
events = json.load(open(sys.argv[2]))
ranks = {e["pid"] for e in events if e["ph"] == "X"}
names = {e["name"] for e in events if e["ph"] == "X"}
assert ranks == {0, 1, 2} and {"data", "forward", "backward", "select", "exchange"} <= names, names
PY

# ---- the same twice, and with processes instead of threads
succeeds --steps 20 --ranks 4
first=$(hash)
succeeds --steps 20 --ranks 4
same "two runs" "$first" "$(hash)"
if ! "$thinwire" info | grep -q '^ *mpi *not' && command -v "$mpirun" >/dev/null; then
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe
    export ASAN_OPTIONS=detect_leaks=0 # MPI itself leaks
    # shellcheck disable=SC2086
    "$mpirun" -n 4 "$thinwire" train $small --steps 20 >"$dir/out" 2>"$dir/err" </dev/null ||
        fail "mpirun: status $?"
    same "threads and mpirun" "$first" "$(hash)"
    unset ASAN_OPTIONS
else
    echo "SKIP: train under mpirun: no MPI"
fi

# ---- killed and resumed: bitwise the run that was not
run="--ranks 2 --scheme oktopk --checkpoint $dir/saved --every 10 --steps 60"
# shellcheck disable=SC2086
succeeds $run
whole=$(hash)
rm -rf "$dir/saved"
# shellcheck disable=SC2086
"$thinwire" train $small --ranks 2 --scheme oktopk --checkpoint "$dir/saved" --every 10 --steps 100000 \
    >/dev/null 2>&1 </dev/null &
victim=$!
tries=0
while [ ! -d "$dir/saved/step-000000030" ] && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -KILL $victim
wait $victim 2>/dev/null
# What a longer run saved beyond step 60 must not be resumed into a shorter one.
for saved in "$dir"/saved/step-*; do
    case $saved in *step-0000000[1-5]0) ;; *) rm -rf "$saved" ;; esac
done
if ls "$dir"/saved/step-0000000[1-5]0 >/dev/null 2>&1; then
    # shellcheck disable=SC2086
    succeeds $run --resume
    grep -q "resumed at step" "$dir/err" || fail "resume: not said"
    same "killed and resumed" "$whole" "$(hash)"
else
    echo "SKIP: the run was too fast to be killed in time"
fi

# ---- a damaged checkpoint is named, the one before it is used
printf X | dd of="$dir/saved/step-000000060/model.bin" bs=1 seek=1000 conv=notrunc 2>/dev/null
# shellcheck disable=SC2086
succeeds $run --resume
grep -q "step-000000060' is not used: does not match its checksum" "$dir/err" || fail "damage unsaid"
grep -q "resumed at step 50" "$dir/err" || fail "the one before was not used"
same "after damage" "$whole" "$(hash)"

# ---- what goes wrong
refused 1 "lower learning rate" --steps 200 --ranks 2 --lr 1000 --momentum 0.99
refused 1 "no-such-place" --data "$dir/no-such-place"
: >"$dir/empty.txt"
refused 1 "empty.txt" --model lstm --data "$dir/empty.txt"
refused 1 "images" --model lstm --steps 2
refused 1 "32x32" --model vgg16 --steps 2
refused 1 "no-such-folder" --steps 2 --log "$dir/no-such-folder/log"
refused 1 "no-such-folder" --steps 2 --trace "$dir/no-such-folder/trace"
refused 1 "directory" --steps 2 --checkpoint "$dir/empty.txt" --every 1
refused 2 "sparse scheme" --scheme dense --momentum-correction
refused 2 "not both" --steps 2 --epochs 2
refused 2 "needs --checkpoint" --resume
refused 2 "model" --model alexnet

echo "$failures failures"
[ $failures -eq 0 ]
