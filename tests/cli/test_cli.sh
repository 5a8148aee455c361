#!/bin/sh
# test_cli.sh - the thinwire command as a user runs it: sh test_cli.sh PATH-TO-THINWIRE [MPIRUN]
#
# Help and info, tiny benchmarks whose JSON is parsed, whose selections must be exact and whose
# allreduces must lose nothing, bounds on a made vector and on a file with a known answer, and wrong
# options: status 2, nothing on stdout, and one line on stderr that says what is accepted. MPIRUN is
# that of the MPI in the build. Prints each failure; ends with their number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"
mpirun=${2:-mpirun}

# says FILE TEXT: the text is in the output or the error output of the last run
says() {
    grep -qF -- "$2" "$dir/$1" || fail "std$1 does not say: $2"
}

# refuses TEXT ARGS...: a wrong command line
refuses() {
    refused 2 "$@"
}

# json CONDITION: every line of stdout is an object, called row, for which the Python condition
# holds. Without Python the lines need only look like objects.
json() {
    if ! command -v python3 >/dev/null; then
        if [ ! -s "$dir/out" ] || grep -qv '^{.*}$' "$dir/out"; then
            fail "no JSON lines"
        fi
        return
    fi
    python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows, "no rows"
for number, row in enumerate(rows):
    assert eval(sys.argv[2]), (sys.argv[2], row)
' "$dir/out" "$1" 2>"$dir/err" || fail "JSON: $1"
}

lines() {
    [ "$(wc -l <"$dir/out")" -eq "$1" ] || fail "expected $1 lines on stdout"
}

# ---- help and info

for command in "" bench "bench select" "bench allreduce" bounds info; do
    # shellcheck disable=SC2086
    succeeds $command --help
    says out "Usage: thinwire"
done
succeeds --help
for word in info bench bounds; do
    says out "$word"
done
succeeds --version
says out "0."
succeeds info
for word in kernels ref threads exact reuse gaussian dgc random redsync gaussian_published; do
    says out "$word"
done
for word in dense topka topkdsa gtopk gaussiank randomk oktopk logtopk twolevel allgather butterfly self sockets custom mpi; do
    says out "$word"
done
has_json=$(sed -n 's/^json  *//p' "$dir/out")
has_mpi=yes
grep -q '^  *mpi  *not' "$dir/out" && has_mpi=no
if [ "$has_json" = yes ]; then
    succeeds info --json
    json 'row["version"] and row["threads"] >= 1'
    succeeds info --json -
    json '{"self", "threads", "sockets", "custom"} <= set(row["transports"])'
    json 'row["wires"] == ["raw", "f32", "f16", "bf16", "q8", "q4", "q2"]'
fi

for setting in THINWIRE_KERNELS=nonsense THINWIRE_THREADS=many THINWIRE_THREADS=0; do
    env "$setting" "$thinwire" info >"$dir/out" 2>"$dir/err" || fail "$setting: info fails"
    grep "${setting%%=*}" "$dir/out" | grep -qF "(now: ${setting#*=}, not usable: selectors will refuse it)" ||
        fail "$setting: info does not say that it is refused"
    [ "$(grep -c "not usable: selectors" "$dir/out")" -eq 1 ] || fail "$setting: info blames another variable"
    [ "$has_json" != yes ] || env "$setting" "$thinwire" info --json 2>"$dir/err" | grep -qF "\"refused\":\"${setting%%=*}: " ||
        fail "$setting: info --json does not say that it is refused"
done
THINWIRE_KERNELS=nonsense "$thinwire" info >"$dir/out" 2>"$dir/err"
! grep -q 'in use' "$dir/out" || fail "info says that kernels are in use, and that selectors are refused"
for setting in THINWIRE_KERNELS= THINWIRE_THREADS=; do
    env "$setting" "$thinwire" info >"$dir/out" 2>"$dir/err" || fail "$setting: info fails"
    grep "$setting" "$dir/out" | grep -qF "(now: empty, as if not set)" || fail "$setting: info does not say what it means"
    env "$setting" "$thinwire" bench select --n 1000 --k 10 >"$dir/out" 2>"$dir/err" || fail "$setting is refused"
done

# ---- help for man and for completion

for command in $("$thinwire" --help=words); do
    "$thinwire" $command --help=man >"$dir/out" 2>"$dir/err" || { [ "$command" = train ] || [ "$command" = demo ]; } ||
        fail "no page of $command"
    [ ! -s "$dir/out" ] || grep -q "^\.TH \"thinwire-$command\" 1" "$dir/out" || fail "$command --help=man is no page"
done
succeeds bench select --help=words
for word in --method --n --help; do grep -q "^$word" "$dir/out" || fail "words of bench select: no $word"; done
grep -q '^--method.* exact' "$dir/out" || fail "words of bench select: no names of methods"

# ---- wrong options

for setting in THINWIRE_KERNELS=nonsense THINWIRE_THREADS=many; do
    # shellcheck disable=SC2163 # the setting is NAME=VALUE
    export "$setting"
    run bench select --n 1000 --k 10
    unset "${setting%%=*}"
    [ $status -eq 1 ] || fail "$setting: status $status, expected 1"
    [ ! -s "$dir/out" ] || fail "$setting: wrote to stdout before it was refused"
    says err "${setting%%=*}"
done
refuses "accepted" nonsense
refuses "unknown option '--nonsense'; \`thinwire bench select --help\` lists the options" bench select --nonsense
refuses "unknown option '--methd'; did you mean '--method'? \`thinwire bench select --help\`" bench select --methd=exact
refuses "did you mean '--n'" bench select -n 5
refuses "exact" bench select --method sorted
refuses "--n" bench select --n 0
refuses "--n" bench select --n -5
refuses "--n" bench select --n 2147483648
refuses "--n" bench select --n many
refuses "--n" bench select --n
refuses "--density" bench select --density 0
refuses "--density" bench select --density 1.5
refuses "--density" bench select --density nan
refuses "--k" bench select --n 10 --k 11
refuses "--k" bench select --n 10 --k 0
refuses "density" bench select --n 100 --k 5 --density 0.1
refuses "vgg16 bert" bench select --tensors resnet
for option in "--n 10" "--k 1" --cold; do refuses "goes without" bench select --tensors vgg16 $option; done
refuses "f16" bench select --type f64
refuses "gauss" bench select --data noise
refuses "--threads" bench select --threads -1
refuses "--threads" bench select --threads 257
refuses "cpu cuda" bench select --device gpu
refuses "bf16" bench allreduce --wire q3
refuses "--threads is for" bench select --device cuda --threads 2
refuses "--threads is for" bench allreduce --device cuda --threads 2
refuses "--steps" bench select --steps 0
refuses "gauss" bounds --data noise
refuses "--points" bounds --points 0
refuses "file" bounds --file "$dir/missing" --data gauss
refuses "'extra' is not an option" bench select extra
refuses "oktopk" bench allreduce --scheme oktop
refuses "gtopk" bench allreduce --exchange ring
refuses "exact" bench allreduce --select sorted
refuses "oneregion" bench allreduce --pattern everywhere
refuses "reuse" bench allreduce --global approximate
refuses "--ranks" bench allreduce --ranks 0
refuses "--ranks" bench allreduce --ranks 1025
refuses "--n" bench allreduce --n 0
refuses "--k" bench allreduce --n 10 --k 11
refuses "density" bench allreduce --n 100 --k 5 --density 0.1
refuses "--density" bench allreduce --density 0
refuses "--steps" bench allreduce --steps 0
refuses "--timeout" bench allreduce --timeout 0
refuses "--threads" bench allreduce --threads 257
refuses "at most" bench allreduce --verify --ranks 100 --steps 1000 --n 100

# ---- bench select

succeeds bench select --n 5000 --density 0.01 --steps 2
says out "exact"
if [ "$has_json" = yes ]; then
    succeeds bench select --n 5K --density 0.01 --steps 2 --json -
    lines 7
    json 'all(key in row for key in ("method arch threads n k count exact time_us floor_us " +
          "ratio").split())'
    json 'row["n"] == 5000 and row["k"] == 50 and row["count"] >= 0'
    json 'row["count"] <= (5000 if row["method"] == "gaussian_published" else 200)'
    json 'row["time_us"] > 0 and row["floor_us"] > 0'
    json 'abs(row["ratio"] * row["floor_us"] / row["time_us"] - 1) < 0.01'
    json 'row["method"] != "exact" or row["exact"] is True and row["count"] == 50'

    for data in gauss laplace power5 constant spike; do
        for type in f32 f16 bf16; do
            succeeds bench select --method exact --n 3001 --k 30 --data $data --type $type \
                --steps 2 --seed 7 --drift 1.5 --threads 2 --json -
            lines 1
            json 'row["exact"] is True and row["count"] == 30 and row["threads"] == 2'
        done
    done
    succeeds bench select --method exact,reuse --n 2000 --density 0.01,0.1 --cold --steps 2 --json -
    lines 4
    json 'row["exact"] is True' # a cold step of reuse is exact too
    succeeds bench select --method exact --n 1000 --k 10 --data zeros --steps 2 --json -
    json 'row["count"] == 0'
    succeeds bench select --method exact --tensors vgg16 --density 0.001 --steps 1 --json -
    lines 1
    json 'row["tensors"] == 54 and row["count"] == row["k"] == 14755 and row["each_us"] > 0'

    THINWIRE_KERNELS=ref
    export THINWIRE_KERNELS
    succeeds bench select --method exact --n 1000 --k 10 --steps 2 --json "$dir/rows"
    cp "$dir/rows" "$dir/out"
    lines 1
    json 'row["arch"] == "ref"'
    unset THINWIRE_KERNELS
fi

# ---- bench allreduce

succeeds bench allreduce --ranks 3 --n 5000 --steps 2
says out "baseline"
if [ "$has_json" = yes ]; then
    succeeds bench allreduce --ranks 4 --n 20000 --density 0.01 --verify --pattern all --steps 6 \
        --json -
    json 'all(key in row for key in ("scheme select exchange wire transport nranks n k density " +
          "pattern step selected applied payload_sent_max payload_recv_max control_max " +
          "bound_words payload_words_max time_us select_us agree_us exchange_us apply_us wrong " +
          "hash exchange_used").split())'
    json 'row["wrong"] == 0 and len(row["hash"]) == 16'
    json 'row["vs_dense"] > 0'
    json 'len(rows) % 5 == 0 and row["baseline"] == (number % (len(rows) // 5) == 0)'
    json 'row["nranks"] == 4 and row["n"] == 20000 and row["transport"] == "threads"'
    json 'row["k"] == (20000 if row["scheme"] == "dense" else 200)'
    json 'row["exchange_used"] != "oktopk" or row["bound_words"] == 1200'
    json 'row["exchange_used"] != "oktopk" or row["payload_words_max"] <= row["bound_words"]'
    json 'row["time_us"] >= max(row["select_us"], row["exchange_us"], row["apply_us"])'
    cp "$dir/out" "$dir/first"
    # The same again, without the check: the results are the same.
    succeeds bench allreduce --ranks 4 --n 20000 --density 0.01 --pattern all --steps 6 \
        --threads 2 --json -
    json 'row["wrong"] is None'
    json "row['hash'] == [json.loads(line) for line in open('$dir/first')][number]['hash']"

    for ranks in 1 2 5 8; do
        succeeds bench allreduce --ranks $ranks --n 3001 --k 30 --steps 3 --verify --seed 5 \
            --pattern oneregion,random --global reuse --json -
        json 'row["wrong"] == 0'
    done
    # What auto chose, and against what it was measured
    succeeds bench allreduce --ranks 3 --n 5000 --k 100 --steps 3 --verify --scheme auto --json -
    lines 2
    says err "predicted"
    json 'row["wrong"] == 0 and (row["baseline"] or row["exchange"] == "auto" and
        row["exchange_used"] != "auto" and row["wire"] in ("raw", "bf16") and
        row["predicted_us"] > 0 and row["measured_us"] > 0)'
    succeeds bench allreduce --ranks 2 --n 5000 --k 100 --steps 1 --scheme auto --wire q4 --json -
    json 'row["wire"] in ("raw", "q4") and (row["wire"] == "q4" or row["exchange_used"] == "dense")'
    # A pair of its own, a scheme with another selection, and a k that is too small for oktopk
    succeeds bench allreduce --ranks 4 --n 2000 --k 100 --steps 2 --verify --select gaussian \
        --exchange oktopk --json -
    lines 2
    json 'row["wrong"] == 0 and row["scheme"] == ["dense", "gaussian+oktopk"][number]'
    succeeds bench allreduce --ranks 4 --n 2000 --k 10 --steps 2 --verify --scheme oktopk --json -
    says err "butterfly"
    json 'row["wrong"] == 0 and row["exchange_used"] == ["dense", "butterfly"][number]'
    succeeds bench allreduce --ranks 2 --n 2000 --density 0.01,0.1 --steps 2 --scheme gtopk,topka \
        --select exact --json "$dir/rows"
    says out "gtopk"
    cp "$dir/rows" "$dir/out"
    lines 5
    json 'row["k"] == [2000, 20, 20, 200, 200][number]'
    succeeds bench allreduce --ranks 3 --n 2 --k 2 --steps 2 --verify --json -
    json 'row["wrong"] == 0'
    run bench allreduce --ranks 2 --n 100 --steps 1 --json "$dir/missing/rows"
    [ $status -eq 1 ] || fail "JSON to a missing folder: status $status, expected 1"
fi

# Ranks as processes: the same results as with threads.
if [ "$has_json" = yes ] && [ "$has_mpi" = yes ] && command -v "$mpirun" >/dev/null; then
    set -- bench allreduce --n 3001 --k 50 --steps 3 --verify --json -
    succeeds "$@" --ranks 3
    cp "$dir/out" "$dir/first"
    export ASAN_OPTIONS=detect_leaks=0 # MPI itself leaks
    "$mpirun" -n 3 "$thinwire" "$@" >"$dir/all" 2>"$dir/err" </dev/null || fail "mpirun: status $?"
    grep '^{' "$dir/all" >"$dir/out" # some MPIs warn on stdout
    json 'row["wrong"] == 0 and row["transport"] == "mpi" and row["nranks"] == 3'
    json "row['hash'] == [json.loads(line) for line in open('$dir/first')][number]['hash']"
    "$mpirun" -n 2 "$thinwire" "$@" --ranks 3 >"$dir/out" 2>"$dir/err" </dev/null
    says err "mpirun started 2"
    [ "$(grep -c '^thinwire:' "$dir/err")" -eq 1 ] || fail "mpirun: expected one line"
else
    echo "SKIP: bench allreduce under mpirun: MPI ($has_mpi), JSON ($has_json)"
fi
if [ "$has_mpi" != yes ]; then
    PMI_SIZE=2 "$thinwire" bench allreduce --n 1000 >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
    [ $status -eq 1 ] || fail "mpirun and no MPI: status $status, expected 1"
    says err "rebuild"
fi

# ---- bounds: 3 and 4 as float32; keeping the 4 leaves 9 of 25

printf '\000\000\100\100\000\000\200\100' >"$dir/vector"
succeeds bounds --file "$dir/vector"
says out "0.36"
succeeds bounds --data gauss --n 10000 --points 5
if [ "$has_json" = yes ]; then
    succeeds bounds --file "$dir/vector" --json -
    json 'row["n"] == 2 and abs(row["measured"] - (0.36 if row["k"] == 1 else 0)) < 1e-6'
    succeeds bounds --data gauss --n 100000 --points 9 --seed 3 --json -
    lines 9
    json 'row["holds"] is True and row["measured"] <= (1 - row["density"]) ** 2 + 1e-9'
    succeeds bounds --data constant --n 1000 --points 3 --json -
    json 'abs(row["measured"] - (1 - row["density"])) < 1e-6'
fi
: >"$dir/empty"
run bounds --file "$dir/empty"
[ $status -ne 0 ] || fail "bounds of an empty file: status 0"
mkfifo "$dir/pipe"
for file in "$dir/pipe" "$dir" /dev/zero; do
    timeout 10 "$thinwire" bounds --file "$file" >"$dir/out" 2>"$dir/err"
    status=$?
    [ $status -eq 1 ] || fail "bounds of $file: status $status, expected 1"
    grep -q "not an ordinary file" "$dir/err" || fail "bounds of $file: not said"
done
run bounds --file "$dir/missing"
[ $status -ne 0 ] || fail "bounds of a missing file: status 0"
printf '\000\000\300\177' >"$dir/nan"
run bounds --file "$dir/nan"
[ $status -ne 0 ] || fail "bounds of NaN: status 0"

# A GPU: measured where there is one, named where not.
succeeds info
grep -q '^gpu' "$dir/out" || fail "info does not say which GPUs there are"
if grep -q '^gpu  *none' "$dir/out"; then
    refused 1 "device:" bench select --device cuda --n 1000 --k 10
    refused 1 "device:" bench allreduce --device cuda --n 1000 --ranks 3
else
    succeeds bench select --device cuda --method exact --n 3001 --k 30 --steps 2
    succeeds bench allreduce --device cuda --n 3001 --ranks 3 --steps 2 --verify
fi

if [ "$has_json" = yes ]; then
    succeeds bench allreduce --no-dense --scheme topka --density 0.01,0.1 --ranks 2 --n 1000 --steps 1 --json -
    json 'len(rows) == 2 and row["scheme"] == "topka" and row["vs_dense"] is None'
fi

# ---- simulate: bytes at the link's rate where latency is nothing, and the same time in every run

succeeds simulate --help
says out "1gbe"
refuses "25gbe" simulate --network 2gbe
refuses "--bandwidth" simulate --latency 5us
refuses "1Gbit" simulate --latency 5us --bandwidth 0
refuses "50us" simulate --latency -1us --bandwidth 1Gbit
refuses "50us" simulate --overhead fast
refuses "--latency '50': give a unit, as 50us or 0.4ms" simulate --latency 50 --bandwidth 1Gbit
refuses "--bandwidth '1e9': give a unit, as 100Mbit or 1Gbit" simulate --latency 50us --bandwidth 1e9
refuses "from 0 to" simulate --computing -1
refuses "not both" simulate --network wan --latency 1us --bandwidth 1Gbit
refuses "RANK:FACTOR" simulate --straggler 3
refuses "0 to 3" simulate --straggler 4:2 --ranks 4
refuses "whole numbers" simulate --ranks 4.5
refuses "--ranks" simulate --ranks 2049
refuses "at most n" simulate --n 10 --k 11
refuses "--steps" simulate --steps 1
refuses "--grid" simulate --grid --wire raw
refuses "gtopk" simulate --paper none
refuses "--n" simulate --paper gtopk --n 5
succeeds simulate --paper gtopk # the authors' figures
says out "2.0      9.8       140        91       812       53"
says out "1.3      3.6      4882       154      1424       61"
says out "1.1 to 1.7 in their abstract"
succeeds simulate --paper streaming-diloco # published, then ours
says out "441          109       1.10         0.88     0.281    0.95      0.074    0.90"
refuses "--local-steps" simulate --tokens 1e9
refuses "--scheme" simulate --local-steps 30 --scheme topka
succeeds simulate --network wan --ranks 2 --n 100 --k 10 --scheme dense
says out "wan, 20000 us, 94 Mbit/s"
succeeds simulate --ranks 2,3 --n 5000 --k 50 --straggler 1:4 --host-ranks 2 --local-latency 1us
if [ "$has_json" = yes ]; then
    set -- simulate --ranks 4,8 --n 8000 --k 200 --json -
    succeeds "$@" --latency 0 --bandwidth 8Mbit
    json 'row["scale"] == 1 and row["exchange_used"] == row["exchange"] or row["scheme"] == "auto"'
    json '(row["scheme"] not in ("dense", "topka") or abs(row["time_s"] * 1e6 - row["payload_sent_max"]
        - row["control_max"]) < 2)'
    succeeds "$@" --network 1gbe --jitter 0.5 --seed 3
    cp "$dir/out" "$dir/first"
    succeeds "$@" --network 1gbe --jitter 0.5 --seed 3
    cmp -s "$dir/out" "$dir/first" || fail "simulate: another time in the second run"
    set -- simulate --ranks 4 --n 1M --k 10000 --scheme topka --latency 0 --bandwidth 1000Gbit --json -
    succeeds "$@"
    json 'row["time_s"] < 0.001 and row["exchange_s"] <= row["time_s"]'
    succeeds "$@" --computing 1000
    json 'row["time_s"] > 0.01 and 0.001 < row["exchange_s"] < row["time_s"]'
    succeeds simulate --ranks 2 --n 5000 --k 5000 --scheme auto --wire raw --latency 0 \
        --bandwidth 80kbit --json -
    says err "dense is faster here: 200" # 2 s, not 2e+03 ms
    json 'row["exchange_used"] == "dense"'
    succeeds simulate --grid --ranks 3 --n 2000 --density 0.1 --network 1gbe --steps 2 --json -
    lines 1
    json 'row["scheme"] == "auto" and row["ratio"] < 1.1 and row["best_s"] > 0'
    succeeds simulate --ranks 4 --n 12M --scheme dense --steps 2 --latency 0 --bandwidth 8Mbit \
        --json -
    json 'abs(row["scale"] - 1.2) < 0.001 and abs(row["time_s"] / 72 - 1) < 0.001'
fi
if command -v gnuplot >/dev/null; then
    succeeds simulate --ranks 2,4 --n 1000 --k 40 --scheme gtopk --plot "$dir/times.svg"
    grep -q gtopk "$dir/times.svg" || fail "simulate: the plot does not name its lines"
fi

finish
