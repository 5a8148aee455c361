#!/bin/sh
# test_elastic.sh - training goes on when ranks are lost, leave and join: sh test_elastic.sh PATH-TO-THINWIRE
#
# Four processes; one joins, one with other options is refused, one is killed, rank 0 leaves. The others
# end with equal replicas, and the log of rank 0 is one log. Prints each failure; ends with their number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"

if ! "$thinwire" train --help >/dev/null 2>&1; then
    echo "SKIP: this build lacks train"
    exit 0
fi
port=$((30000 + $$ % 2000)) # below the ports that connections get
echo "a secret" >"$dir/secret"
echo "another" >"$dir/other"
export OPENBLAS_NUM_THREADS=1

# start NAME ARGS...: in the background; its process id is in $dir/pid.NAME
start() {
    name=$1
    shift
    # shellcheck disable=SC2086 # words
    "$thinwire" $common --secret-file "$dir/secret" --log "$dir/run.jsonl" "$@" \
        >"$dir/out.$name" 2>"$dir/err.$name" &
    echo $! >"$dir/pid.$name"
}
# shellcheck disable=SC2046 # words
trap 'kill -9 $(cat "$dir"/pid.* 2>/dev/null) 2>/dev/null; rm -rf "$dir"' EXIT

# signal NAME SIGNAL
signal() {
    kill "-$2" "$(cat "$dir/pid.$1")"
}

# ends NAME STATUS
ends() {
    wait "$(cat "$dir/pid.$1")"
    ended=$?
    rm "$dir/pid.$1"
    cp "$dir/err.$1" "$dir/err"
    [ $ended -eq "$2" ] || fail "$1 ends with status $ended, expected $2"
}

# until_says FILE TEXT
until_says() {
    tries=0
    until grep -qs -- "$2" "$dir/$1"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { fail "$1 does not say: $2" && return; }
        sleep 0.1
    done
}

# begin STEPS: four ranks
begin() {
    port=$((port + 1))
    common="train --elastic --model mlp --limit 2000 --test-limit 400 --evaluate $1 --ranks 4 --timeout 20 \
        --meet 127.0.0.1:$port --steps $1"
    for rank in 0 1 2 3; do
        start $rank --rank $rank
    done
}

# As many steps as take some seconds here, so that all that follows happens meanwhile.
: >"$dir/out" && : >"$dir/err"
begin 200
for rank in 0 1 2 3; do
    ends $rank 0
done
steps=$(sed -n 's/.*"kind":"end".*"seconds":\([0-9.]*\).*/\1/p' "$dir/run.jsonl" | awk '{ print int(1 + 10 * 200 / $1) }')
begin "${steps:-2000}"
start new --join
until_says err.new "joined at step"
# shellcheck disable=SC2086 # words
refused 1 "has another secret" $common --secret-file "$dir/other" --join
# shellcheck disable=SC2086
refused 1 "differ in --batch" $common --secret-file "$dir/secret" --join --batch 16
signal 2 KILL
until_says err.0 "rank 2 was lost; 4 go on"
signal 0 TERM
ends 0 0
grep -q "left the job after step" "$dir/err.0" || fail "rank 0 does not say that it left"
ends 1 0
ends 2 137
ends 3 0
ends new 0
cp "$dir/err.1" "$dir/err"
grep -q "rank 0 left, rank 0 has its residual; 3 go on" "$dir/err.1" || fail "nobody says that rank 0 left"
same "lines about equal replicas" "$(cat "$dir"/out.* | grep -c "replicas bitwise equal, hash")" 1
same "ranks that joined" "$(grep -c '"kind":"members".*"joined":\[4\]' "$dir/run.jsonl")" 1
same "ranks that were lost" "$(grep -c '"kind":"members".*"lost":\[2\]' "$dir/run.jsonl")" 1
same "ranks that left" "$(grep -c '"kind":"members".*"left":\[0\]' "$dir/run.jsonl")" 1
grep -q '"kind":"end".*"replicas_equal":true' "$dir/run.jsonl" || fail "the log does not end"
succeeds report "$dir/run.jsonl" --out "$dir/page.html"
grep -q "rank 2 lost; 4 go on" "$dir/page.html" || fail "the report does not tell who was lost"

# Undisturbed, the bits are those of ranks that cannot change.
port=$((port + 1))
for rank in 0 1 2; do
    # shellcheck disable=SC2086
    "$thinwire" train --elastic --meet 127.0.0.1:$port --ranks 3 --rank $rank --steps 12 --limit 500 --test-limit 100 \
        >"$dir/out.$rank" 2>"$dir/err.$rank" &
done
wait
succeeds train --steps 12 --limit 500 --test-limit 100 --ranks 3
same "the hash of an elastic training" "$(sed -n 's/.*equal, hash \([0-9a-f]*\).*/\1/p' "$dir/out.0")" \
    "$(sed -n 's/.*equal, hash \([0-9a-f]*\).*/\1/p' "$dir/out")"

here="train --elastic --meet localhost:1 --ranks 2"
refused 2 "--elastic needs --meet" train --elastic
refused 2 "--join needs --elastic" train --join --meet localhost:1 --ranks 2
# shellcheck disable=SC2086
{
    refused 2 "give one of them" $here --join --rank 1
    refused 2 "--join needs --ranks P" train --elastic --meet localhost:1 --join
    refused 2 "--checkpoint saves the states of fixed ranks" $here --rank 0 --checkpoint "$dir/saved"
    refused 2 "--local-steps needs fixed ranks" $here --rank 0 --local-steps 4
    refused 2 "--per-rank sets k by the number of ranks" $here --rank 0 --per-rank
    refused 1 "nobody admits this process" $here --join --timeout 0.3
}
finish
