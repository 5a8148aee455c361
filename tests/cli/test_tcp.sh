#!/bin/sh
# test_tcp.sh - processes that meet over TCP: sh test_tcp.sh PATH-TO-THINWIRE
#
# Training gives the bits that it gives between threads. Prints each failure; ends with their number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"

port=$((20000 + $$ % 10000)) # below the ports that connections get
echo "a secret" >"$dir/secret"
echo "another" >"$dir/other"

# meet COMMAND...: three ranks of it. $dir/out is what rank 0 writes; the others write nothing.
meet() {
    port=$((port + 1))
    for rank in 0 1 2; do
        timeout 60 "$thinwire" "$@" --meet "127.0.0.1:$port,127.0.0.2:$port" --ranks 3 --rank $rank \
            --secret-file "$dir/secret" >"$dir/out$rank" 2>"$dir/err$rank" &
    done
    wait
    for rank in 0 1 2; do
        [ ! -s "$dir/err$rank" ] || fail "rank $rank: $(cat "$dir/err$rank")"
        [ $rank = 0 ] || [ ! -s "$dir/out$rank" ] || fail "rank $rank writes: $(cat "$dir/out$rank")"
    done
    cp "$dir/out0" "$dir/out"
}

meet bench allreduce --n 10000 --steps 2 --verify --scheme topka,oktopk --no-dense
grep -q "3 ranks over tcp" "$dir/out" || fail "bench allreduce does not say tcp"
same "rows without a wrong value" "$(awk '$NF == 0 && /^(topka|oktopk)/' "$dir/out" | wc -l)" 2

if "$thinwire" train --help >"$dir/help" 2>&1; then
    meet train --steps 5 --limit 500 --test-limit 100
    over_tcp=$(sed -n 's/.*bitwise equal, hash \([0-9a-f]*\).*/\1/p' "$dir/out")
    succeeds train --steps 5 --limit 500 --test-limit 100 --ranks 3
    threads=$(sed -n 's/.*bitwise equal, hash \([0-9a-f]*\).*/\1/p' "$dir/out")
    [ -n "$threads" ] || fail "train prints no hash"
    same "the hash of a training over tcp" "$over_tcp" "$threads"
fi

# A process with another secret is refused, and the job goes on.
port=$((port + 1))
ends="bench allreduce --n 1000 --steps 1 --scheme topka --no-dense --meet 127.0.0.1:$port --ranks 2"
# shellcheck disable=SC2086 # words
timeout 60 "$thinwire" $ends --rank 0 --secret-file "$dir/secret" >"$dir/first" 2>&1 &
sleep 0.3
# shellcheck disable=SC2086
refused 1 "has another secret" $ends --rank 1 --secret-file "$dir/other"
# shellcheck disable=SC2086
succeeds $ends --rank 1 --secret-file "$dir/secret"
wait
grep -q "^topka" "$dir/first" || fail "rank 0 did not finish: $(cat "$dir/first")"

refused 2 "--meet needs --rank R and --ranks P" bench allreduce --meet localhost:1
refused 2 "accepted are 0 .. 1" bench allreduce --meet localhost:1 --ranks 2 --rank 2
refused 2 "are for --meet" bench allreduce --rank 0
refused 2 "with --meet they are processes over TCP" bench allreduce --meet localhost:1 --ranks 2 --rank 0 \
    --transport sockets
refused 1 "within 0.2 s from rank 1" bench allreduce --meet "127.0.0.1:$((port + 1))" --ranks 2 --rank 0 --timeout 0.2
# A launcher's rank does not silence a process that speaks for itself.
export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1
refused 2 "accepted are 0 .. 1" bench allreduce --meet localhost:1 --ranks 2 --rank 2
unset OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK
refused 1 "none cannot be read: No such file or directory" bench allreduce --meet localhost:1 --ranks 2 --rank 0 --secret-file "$dir/none"
refused 1 "cannot be read: Is a directory" bench allreduce --meet localhost:1 --ranks 2 --rank 0 --secret-file "$dir"
: >"$dir/empty"
refused 1 "accepted are 1 to 4096 bytes" bench allreduce --meet localhost:1 --ranks 2 --rank 0 \
    --secret-file "$dir/empty"
for place in nowhere localhost:99999; do
    refused 1 "'$place'; accepted is host:port" bench allreduce --meet $place --ranks 2 --rank 0
    ! grep -q "hint:" "$dir/err" || fail "$place: a hint that says nothing of it"
done
refused 1 "hint: see that all ranks run, and that --meet names a host" bench allreduce --meet \
    no-such-host.invalid:5000 --ranks 2 --rank 1 --timeout 0.5
finish
