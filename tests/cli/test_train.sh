#!/bin/sh
# test_train.sh - `thinwire train` as a user runs it: sh test_train.sh PATH-TO-THINWIRE [MPIRUN]
#
# Replicas equal, the same parameters with threads and processes, a run that was killed and resumed
# ends bitwise like one that was not, damaged and mixed checkpoints are refused, a diverging run stops
# with a hint, bad data and unwritable files get one clear line. Prints each failure; ends with their
# number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"
mpirun=${2:-mpirun}

small="--limit 2000 --test-limit 200 --batch 8"
# train ARGS...: status in $status, output in $dir/out and $dir/err
train() {
    # shellcheck disable=SC2086 # options are words
    run train $small "$@"
}
trains() { # trains ARGS...: with status 0
    # shellcheck disable=SC2086
    succeeds train $small "$@"
}
# fails STATUS TEXT ARGS...: one line of thinwire's on stderr, which may be after others, holds TEXT
fails() {
    expected=$1 text=$2
    shift 2
    train "$@"
    [ $status -eq "$expected" ] || fail "train $*: status $status, expected $expected"
    [ "$(grep -c '^thinwire:' "$dir/err")" -eq 1 ] || fail "train $*: expected one line"
    grep -q -- "$text" "$dir/err" || fail "train $*: no '$text'"
}
hash() { sed -n 's/^replicas bitwise equal, hash \([0-9a-f]*\);.*/\1/p' "$dir/out"; }

if "$thinwire" train 2>&1 --steps 1 --limit 64 --test-limit 64 --batch 8 | grep -q "has no trainer"; then
    echo "SKIP: this build has no trainer; 'make deps' installs what it needs"
    exit 0
fi

# ---- every scheme: replicas equal, log readable, timeline readable
schemes=$("$thinwire" info | awk '/^[a-z]/ { row = $1; sub(row, "") } row == "scheme" { print $1 }')
[ -n "$schemes" ] || fail "info: no schemes"
for scheme in $schemes; do
    trains --steps 6 --ranks 3 --scheme $scheme --log "$dir/$scheme.jsonl" --trace "$dir/trace" \
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

# ---- a run that is interrupted leaves a whole timeline
# shellcheck disable=SC2086
"$thinwire" train $small --steps 100000 --ranks 3 --trace "$dir/cut" >"$dir/out" 2>"$dir/err" </dev/null &
pid=$!
for i in 1 2 3 4 5 6 7 8 9 10; do
    [ ! -e "$dir/cut" ] || [ "$(grep -c '"step":' "$dir/cut")" -lt 100 ] || break
    sleep 0.5
done
kill -TERM $pid # a shell without job control lets its children ignore SIGINT
wait $pid && fail "the run was not interrupted"
python3 -c '
import json, sys
assert sum(e["ph"] == "X" for e in json.load(open(sys.argv[1]))) >= 100' "$dir/cut" || fail "timeline after SIGTERM"

# ---- Gaussian_k does not starve: its loss is topka's, where it once sent 0.08k and stayed at 1.8
for scheme in topka gaussiank; do
    succeeds train --model mlp --steps 300 --density 0.001 --lr 0.05 --momentum 0 --scheme $scheme
    sed -n 's/.*, loss \([0-9.]*\)$/\1/p' "$dir/out"
done >"$dir/losses"
paste -s "$dir/losses" | awk '{ exit !(NF == 2 && $2 < 1.1 * $1) }' ||
    fail "gaussiank and topka: $(paste -s "$dir/losses")"

# ---- the same twice, and with processes instead of threads
trains --steps 20 --ranks 4
first=$(hash)
trains --steps 20 --ranks 4
same "two runs" "$first" "$(hash)"
local="--steps 20 --local-steps 6 --scheme topka --density 0.05 --wire q2 --outer-momentum 0.5"
# shellcheck disable=SC2086
trains --ranks 3 $local --log "$dir/local.jsonl"
rounds=$(hash)
[ -n "$rounds" ] || fail "local steps: no hash of equal replicas"
python3 - "$dir/local.jsonl" <<'PY' || fail "log of local steps"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows[0]["local_steps"] == 6 and rows[0]["outer_momentum"] == 0.5, rows[0]
assert rows[0]["result"] == "mean_of_senders", rows[0]
sent = [row["step"] for row in rows if row["kind"] == "step" and row["payload_sent"] > 0]
assert sent == [5, 11, 17, 19], sent       # the last round is shorter
assert all(row["step"] % 6 == 0 or row["step"] == 20 for row in rows if row["kind"] == "evaluation")
PY
# shellcheck disable=SC2086
trains --ranks 3 $local --result mean_of_senders
same "rounds by default and of the mean of the senders" "$rounds" "$(hash)"
# shellcheck disable=SC2086
trains --ranks 3 $local --result mean
[ -n "$(hash)" ] && [ "$(hash)" != "$rounds" ] || fail "the mean over all workers: hash '$(hash)'"
# Delayed rounds: of one rank they are the same as others, bit by bit. Of several, replicas end equal.
for delayed in "" --delayed; do
    # shellcheck disable=SC2086
    trains --ranks 1 --steps 20 --local-steps 6 --scheme dense $delayed
    hash
done >"$dir/hashes"
[ "$(sort -u "$dir/hashes" | wc -l)" -eq 1 ] || fail "delayed rounds of one rank: $(paste -s "$dir/hashes")"
# shellcheck disable=SC2086
trains --ranks 3 $local --delayed --log "$dir/delayed.jsonl"
delayed=$(hash)
[ -n "$delayed" ] && [ "$delayed" != "$rounds" ] || fail "delayed rounds: hash '$delayed'"
python3 - "$dir/delayed.jsonl" <<'PY' || fail "log of delayed rounds"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows[0]["delayed"] is True and rows[0]["result"] == "mean", rows[0]
ended = [row["step"] for row in rows if row["kind"] == "step" and row["applied"] > 0]
assert ended == [11, 17, 19], ended        # an exchange ends with the next round; the last one too
PY
if ! "$thinwire" info | grep -q '^ *mpi *not' && command -v "$mpirun" >/dev/null; then
    export ASAN_OPTIONS=detect_leaks=0 # MPI itself leaks
    # shellcheck disable=SC2086
    "$mpirun" -n 4 "$thinwire" train $small --steps 20 >"$dir/out" 2>"$dir/err" </dev/null ||
        fail "mpirun: status $?"
    same "threads and mpirun" "$first" "$(hash)"
    # shellcheck disable=SC2086
    "$mpirun" -n 3 "$thinwire" train $small $local >"$dir/out" 2>"$dir/err" </dev/null ||
        fail "local steps under mpirun: status $?"
    same "local steps with threads and mpirun" "$rounds" "$(hash)"
    # shellcheck disable=SC2086
    "$mpirun" -n 3 "$thinwire" train $small $local --delayed >"$dir/out" 2>"$dir/err" </dev/null ||
        fail "delayed rounds under mpirun: status $?"
    same "delayed rounds with threads and mpirun" "$delayed" "$(hash)"
    "$mpirun" -n 2 "$thinwire" demo --logs "$thinwire" >"$dir/out" 2>"$dir/err" </dev/null
    [ "$(grep -c '^thinwire: cannot make the directory' "$dir/err")" -eq 1 ] || fail "demo under mpirun"
    unset ASAN_OPTIONS
else
    echo "SKIP: train under mpirun: no MPI"
fi

# ---- what is wrong with options is told by rank 0 alone: mpirun ends all when another fails first
export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1
for command in "train --epochs none" "train --resume" "demo --epochs none" "bench overlap --steps none"; do
    # shellcheck disable=SC2086
    succeeds $command
    [ ! -s "$dir/err" ] || fail "$command: rank 1 speaks"
done
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK

# ---- killed and resumed: bitwise the run that was not
saving="--ranks 2 --scheme oktopk --checkpoint $dir/saved --every 10"
# shellcheck disable=SC2086
"$thinwire" train $small $saving --steps 100000 >/dev/null 2>&1 </dev/null &
victim=$!
tries=0
while [ "$(find "$dir/saved" -name 'step-?????????' 2>/dev/null | wc -l)" -lt 2 ] && [ $tries -lt 600 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -KILL $victim
wait $victim 2>/dev/null
last=$(cd "$dir/saved" && echo step-????????? | sed 's/.*step-0*//')
saving="$saving --steps $((last + 20))"
before=step-$(printf %09d $((last + 10))) newest=step-$(printf %09d $((last + 20)))
trains --ranks 2 --scheme oktopk --steps $((last + 20))
whole=$(hash)
# shellcheck disable=SC2086
trains $saving --resume
grep -q "resumed at step $last" "$dir/err" || fail "resume: not said"
same "killed and resumed" "$whole" "$(hash)"

# ---- a checkpoint with a damaged file is named, the one before it is used
cp -R "$dir/saved" "$dir/good"
printf X | dd of="$dir/saved/$newest/model.bin" bs=1 seek=1000 conv=notrunc 2>/dev/null
# shellcheck disable=SC2086
trains $saving --resume
grep -q "$newest' is not used: .*model.bin' does not match the manifest" "$dir/err" || fail "damage unsaid"
grep -q "resumed at step $((last + 10))" "$dir/err" || fail "the one before was not used"
same "after damage" "$whole" "$(hash)"

# ---- one of a later step stays, and keeps no place of others
cp -R "$dir/saved/$newest" "$dir/saved/step-900000000"
# shellcheck disable=SC2086
trains $saving --resume
grep -q "step-900000000' is not used: it was saved at step $((last + 20))" "$dir/err" ||
    fail "another step: unsaid"
same "what is kept" "$before $newest step-900000000" "$(cd "$dir/saved" && echo *)"
rm -r "$dir/saved/step-900000000"

# ---- a checkpoint is one thing: a file of another step, run or rank, or one that is no file
other="--ranks 2 --scheme oktopk --checkpoint $dir/other --every 10 --lr 0.04 --steps $((last + 20))"
# shellcheck disable=SC2086
trains $other
mixed() { # mixed WHAT: the checkpoint at $dir/saved/$newest is named, the one before it used
    # shellcheck disable=SC2086
    trains $saving --resume
    grep -q "$newest' is not used" "$dir/err" || fail "$1: used"
    grep -q "resumed at step $((last + 10))" "$dir/err" || fail "$1: the one before was not used"
    same "$1" "$whole" "$(hash)"
}
refill() { # the good checkpoints again
    rm -r "$dir/saved"
    cp -R "$dir/good" "$dir/saved"
}
refill
cp "$dir/saved/$before/model.bin" "$dir/saved/$newest"
mixed "the model of another step"
refill
cp "$dir/saved/$before"/*.state "$dir/saved/$newest"
mixed "the states of another step"
refill
cp "$dir/saved/$before"/rank-1.bin "$dir/saved/$newest/rank-0.bin"
cp "$dir/saved/$before"/rank-0.bin "$dir/saved/$newest/rank-1.bin"
cp "$dir/saved/$before"/model.bin "$dir/saved/$before"/*.state "$dir/saved/$newest"
mixed "all but the manifest of another step"
refill
cp "$dir/saved/$before/manifest" "$dir/saved/$newest"
mixed "the manifest of another step"
refill
cp "$dir/other/$newest"/*.state "$dir/saved/$newest"
mixed "the states of another run"
refill
rm "$dir/saved/$newest/manifest"
mixed "no manifest"
for file in model.bin rank-1.bin rank-1.state manifest; do
    refill
    rm "$dir/saved/$newest/$file"
    mkfifo "$dir/saved/$newest/$file"
    mixed "$file: a pipe"
    refill
    rm "$dir/saved/$newest/$file"
    mkdir -p "$dir/saved/$newest/$file/deeper"
    mixed "$file: a directory"
    refill
    rm "$dir/saved/$newest/$file"
    ln -s /dev/zero "$dir/saved/$newest/$file"
    mixed "$file: a device"
done
refill
rm -r "$dir/saved/$newest"
echo text >"$dir/saved/$newest"
mixed "a file where the directory should be"

# ---- what lies where a checkpoint is written is neither followed nor in the way
mkdir "$dir/victim"
echo kept >"$dir/victim/file"
for kind in link file directory; do
    refill
    rm -r "$dir/saved/$newest"
    part="$dir/saved/$newest.part"
    case $kind in
    link) ln -s "$dir/victim" "$part" ;;
    file) echo text >"$part" ;;
    directory) mkdir -p "$part/model.bin/deeper" && echo text >"$part/.hidden" ;;
    esac
    # shellcheck disable=SC2086
    trains $saving --resume
    same "a $kind in the way" "$whole" "$(hash)"
    [ -f "$dir/saved/$newest/manifest" ] || fail "a $kind in the way: no checkpoint"
    same "what is kept" "$before $newest" "$(cd "$dir/saved" && echo *)"
done
same "behind a link" kept "$(cat "$dir/victim/file")"
refill

# ---- another seed is another run
# shellcheck disable=SC2086
train $saving --seed 2 --resume
grep -q "is of a run with another model, optimiser or seed" "$dir/err" || fail "another seed: unsaid"
[ $status -eq 1 ] || fail "another seed: status $status"

# ---- AdamW goes on too, and three ranks' checkpoint goes on with two: the same each time
adamw="--scheme topka --optimizer adamw --lr 0.002"
# shellcheck disable=SC2086
trains $adamw --ranks 3 --steps 20
whole=$(hash)
# shellcheck disable=SC2086
trains $adamw --ranks 3 --steps 10 --checkpoint "$dir/adamw" --every 10
cp -R "$dir/adamw" "$dir/again"
for copy in adamw again; do
    # shellcheck disable=SC2086
    trains $adamw --ranks 2 --steps 20 --checkpoint "$dir/$copy" --every 10 --resume
    grep -q "resumed at step 10" "$dir/err" || fail "three ranks' by two: not resumed"
    hash
done >"$dir/hashes"
same "three ranks' checkpoint by two" "$(sed -n 1p "$dir/hashes")" "$(sed -n 2p "$dir/hashes")"
rm -r "$dir/adamw/step-000000020"
# shellcheck disable=SC2086
trains $adamw --ranks 3 --steps 20 --checkpoint "$dir/adamw" --every 10 --resume
same "AdamW, resumed" "$whole" "$(hash)"

# ---- another run's checkpoints are not mixed with this one's, nor is its log written over
echo kept >"$dir/log"
# shellcheck disable=SC2086
fails 1 "holds checkpoints of another run; give --resume" $saving --log "$dir/log"
grep -qx kept "$dir/log" || fail "a refused run wrote over the log"
# shellcheck disable=SC2086
train $saving --momentum 0 --resume
[ $status -eq 1 ] || fail "none to resume from: status $status"
grep -q "none of 2 checkpoints in .* can be used; give" "$dir/err" || fail "none to resume from: unsaid"
same "what is kept" "$before $newest" "$(cd "$dir/saved" && echo *)"

# ---- a resumed log goes on behind the last line that was written whole
logged="--ranks 2 --checkpoint $dir/logged --every 5 --log $dir/logged.jsonl"
# shellcheck disable=SC2086
trains $logged --steps 10
printf '{"kind":"step","step":10,"lo' >>"$dir/logged.jsonl" # as a killed run leaves it
# shellcheck disable=SC2086
trains $logged --steps 20 --resume
! grep -qv '^{.*}$' "$dir/logged.jsonl" || fail "half a line is left in the log"
[ "$(grep -c '"kind":"run"' "$dir/logged.jsonl")" -eq 2 ] || fail "the log does not hold both runs"
[ "$(grep -c '"kind":"step"' "$dir/logged.jsonl")" -eq 20 ] || fail "the log lacks steps"
succeeds report "$dir/logged.jsonl" --out "$dir/page.html"

# ---- AdamW before selection: its moments are in the checkpoint, the density of each step in the log
before="--ranks 2 --scheme topka --optimizer adamw-before --density-warmup 12 --density-schedule linear"
# shellcheck disable=SC2086
trains $before --steps 20 --log "$dir/before.jsonl"
whole=$(hash)
# shellcheck disable=SC2086
trains $before --steps 10 --checkpoint "$dir/before" --every 10
# shellcheck disable=SC2086
trains $before --steps 20 --checkpoint "$dir/before" --every 10 --resume
same "AdamW before selection, resumed" "$whole" "$(hash)"
python3 - "$dir/before.jsonl" <<'PY' || fail "density in the log"
import json, sys
density = [row["density"] for row in map(json.loads, open(sys.argv[1])) if row["kind"] == "step"]
assert len(density) == 20 and abs(density[0] - 0.25) < 1e-3, density
assert abs(density[6] - 0.13) < 1e-3 and all(abs(d - 0.01) < 1e-3 for d in density[12:]), density
PY

# ---- what goes wrong
mkdir "$dir/narrow"
python3 - "$dir/narrow" <<'PY' || fail "images"
import struct, sys
for split in "train", "t10k":
    with open(f"{sys.argv[1]}/{split}-images-idx3-ubyte", "wb") as images:
        images.write(struct.pack(">4I", 0x803, 64, 28, 20) + bytes(64 * 28 * 20))
    with open(f"{sys.argv[1]}/{split}-labels-idx1-ubyte", "wb") as labels:
        labels.write(struct.pack(">2I", 0x801, 64) + bytes(i % 10 for i in range(64)))
PY
fails 1 "lower learning rate" --steps 200 --ranks 2 --lr 1000 --momentum 0.99
fails 1 "no-such-place" --data "$dir/no-such-place"
: >"$dir/empty.txt"
fails 1 "empty.txt" --model lstm --data "$dir/empty.txt"
fails 1 "holds images; give --data FILE" --model lstm --steps 2
fails 1 "32x32.*give --data DIRECTORY with the binary batches of CIFAR-10" --model vgg16 --steps 2
fails 1 "28x28x1.* has 28x20x1" --data "$dir/narrow" --steps 2
fails 1 "no-such-folder" --steps 2 --log "$dir/no-such-folder/log"
fails 1 "no-such-folder" --steps 2 --trace "$dir/no-such-folder/trace"
fails 1 "directory" --steps 2 --checkpoint "$dir/empty.txt" --every 1
fails 1 "directory" --steps 2 --checkpoint "$dir/empty.txt" --every 100
fails 2 "sparse scheme" --scheme dense --momentum-correction
fails 2 "--snapshots" --local-steps 5 --snapshots 5
for option in "--outer-lr 1" "--outer-momentum 0" "--decay 0.95" --delayed; do
    # shellcheck disable=SC2086
    fails 2 "${option%% *} needs --local-steps H" $option
done
fails 2 "--every needs --checkpoint" --every 100
fails 2 "--density-schedule needs --density-warmup" --density-schedule linear
for option in "--drop-every 5" "--drop-factor 0.1"; do
    # shellcheck disable=SC2086
    fails 2 "${option%% *} needs --schedule step" $option
    # shellcheck disable=SC2086
    fails 2 "${option%% *} needs --schedule step" $option --schedule cosine
done
fails 2 "--momentum needs --optimizer sgd" --optimizer adamw --momentum 0.9
fails 2 "--momentum needs --optimizer sgd" --model lstm --momentum 0.9
trains --steps 2 --schedule step --drop-every 1 --drop-factor 0.5
trains --steps 2 --optimizer adamw --momentum-correction --momentum 0.5
fails 2 "1 to 1024 threads" --ranks 1025
fails 1 "within 0.2 s" --ranks 1100 --batch 1 --rank 0 --meet 127.0.0.1:1 --timeout 0.2
fails 2 "--checkpoint" --local-steps 5 --checkpoint "$dir/none"
fails 2 "sparse scheme" --scheme dense --optimizer adamw-before
fails 2 "needs a fixed scheme" --scheme auto --per-rank
fails 2 "leave it out" --optimizer adamw-before --snapshots 2
fails 2 "not both" --steps 2 --epochs 2
fails 2 "needs --checkpoint" --resume
fails 2 "model" --model alexnet
fails 2 "exact reuse gaussian" --select sorted
fails 2 "allgather dsa gtopk" --exchange telepathy

finish
