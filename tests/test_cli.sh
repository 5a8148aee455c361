#!/bin/sh
# test_cli.sh - the thinwire command as a user runs it: sh test_cli.sh PATH-TO-THINWIRE
#
# Help and info, tiny benchmarks whose JSON is parsed and whose selections must be exact, bounds on
# a made vector and on a file with a known answer, and wrong options: status 2, nothing on stdout,
# and one line on stderr that says what is accepted. Prints each failure; ends with their number.

if [ $# -ne 1 ]; then
    echo "usage: sh test_cli.sh PATH-TO-THINWIRE" >&2
    exit 2
fi
thinwire=$1
unset THINWIRE_KERNELS THINWIRE_THREADS
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0

fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    sed 's/^/    stdout: /' "$dir/out" | head -5
    sed 's/^/    stderr: /' "$dir/err" | head -5
}

# run ARGS...: status in $status, output in $dir/out and $dir/err
run() {
    "$thinwire" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}

succeeds() {
    run "$@"
    [ $status -eq 0 ] || fail "thinwire $*: status $status, expected 0"
}

# says FILE TEXT: the text is in the output or the error output of the last run
says() {
    grep -qF -- "$2" "$dir/$1" || fail "std$1 does not say: $2"
}

# refuses TEXT ARGS...: status 2 and exactly one line, which holds the text
refuses() {
    text=$1
    shift
    run "$@"
    [ $status -eq 2 ] || fail "thinwire $*: status $status, expected 2"
    [ ! -s "$dir/out" ] || fail "thinwire $*: wrote to stdout"
    [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "thinwire $*: expected one line on stderr"
    says err "$text"
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

for command in "" bench "bench select" bounds info; do
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
for word in kernels ref threads exact reuse gaussian dgc random redsync; do
    says out "$word"
done
has_json=$(sed -n 's/^json  *//p' "$dir/out")

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
refuses "--method" bench select --nonsense
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
refuses "f16" bench select --type f64
refuses "gauss" bench select --data noise
refuses "--threads" bench select --threads -1
refuses "--threads" bench select --threads 257
refuses "--steps" bench select --steps 0
refuses "gauss" bounds --data noise
refuses "--points" bounds --points 0
refuses "file" bounds --file "$dir/missing" --data gauss
refuses "extra" bench select extra

# ---- bench select

succeeds bench select --n 5000 --density 0.01 --steps 2
says out "exact"
if [ "$has_json" = yes ]; then
    succeeds bench select --n 5K --density 0.01 --steps 2 --json -
    lines 6
    json 'all(key in row for key in ("method arch threads n k count exact time_us floor_us " +
          "ratio").split())'
    json 'row["n"] == 5000 and row["k"] == 50 and 0 <= row["count"] <= 200'
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

    THINWIRE_KERNELS=ref
    export THINWIRE_KERNELS
    succeeds bench select --method exact --n 1000 --k 10 --steps 2 --json "$dir/rows"
    cp "$dir/rows" "$dir/out"
    lines 1
    json 'row["arch"] == "ref"'
    unset THINWIRE_KERNELS
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
run bounds --file "$dir/missing"
[ $status -ne 0 ] || fail "bounds of a missing file: status 0"
printf '\000\000\300\177' >"$dir/nan"
run bounds --file "$dir/nan"
[ $status -ne 0 ] || fail "bounds of NaN: status 0"

echo "$failures failures"
[ $failures -eq 0 ]
