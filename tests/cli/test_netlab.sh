#!/bin/sh
# What scripts/netlab and others say and refuse, and, where it can, a small laboratory: sh test_netlab.sh scripts/netlab
#
# The laboratory needs root, shaped links, Open MPI and bench/links (make netlab builds it).
. "$(dirname "$0")/shell.sh"
root=$(dirname "$1")/..

succeeds --help
grep -q "sudo scripts/netlab" "$dir/out" || fail "--help has no example"
refused 2 "--help" --nonsense
refused 2 "needs a value" --rate
refused 2 "3 to 64" --hosts 2
refused 2 "3 to 64" --hosts many
refused 2 "yes or no" --peers maybe
lab=$thinwire
thinwire=$root/scripts/netlab-train
succeeds --help
refused 2 "cnn, vgg16, rounds" nonsense
refused 2 "needs a value" --rate
refused 2 "takes no data" cnn here
refused 2 "CIFAR-10" vgg16
refused 2 "train.txt" rounds
refused 2 "not an option" --fast cnn
refused 2 "3 to 64" --hosts many cnn
refused 2 "not a number" --steps few cnn
refused 2 "not a number" --curve many rounds text
refused 2 "is not one of dense,topka,oktopk-bf16,auto" --runs nonsense cnn
for script in abi elastic experiments fuzz verify-exchange; do # its usage, and nothing runs
    thinwire=$root/scripts/$script
    succeeds --help
    grep -q "scripts/$script" "$dir/out" || fail "$script --help: no usage"
done
thinwire=$root/scripts/elastic
refused 2 "not a seed" --fast
thinwire=$lab
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
    if setpriv --reuid 65534 --clear-groups test -x "$thinwire"; then
        setpriv --reuid 65534 --clear-groups "$thinwire" >"$dir/out" 2>"$dir/err"
        status=$?
        [ $status -eq 1 ] || fail "without root: status $status, expected 1"
        grep -q "sudo" "$dir/err" || fail "without root: does not say how"
    fi
fi

if [ "$(id -u)" -ne 0 ] || ! command -v tc >/dev/null || [ ! -x "$root/build/bench/links" ] ||
    ! { ip netns add "twprobe$$" && ip netns del "twprobe$$"; } 2>/dev/null; then
    [ "$failures" -ne 0 ] || echo "SKIP: no laboratory here: it needs root, namespaces and make netlab"
    finish
fi
refused 2 "openmpi, mpich" --mpi lam
export NETLAB_PREFIX="twtest$$"
succeeds --hosts 3 --n 20000 --scheme topka,oktopk --wire bf16 --density 0.01 --steps 2 --mpi openmpi --peers no \
    --train no --out "$dir/lab"
rows=$(grep -c '"what":"step"' "$dir/lab/netlab.jsonl")
[ "$rows" -eq 2 ] || fail "$rows rows measured, expected 2"
grep -q '"what":"predicted"' "$dir/lab/netlab.jsonl" || fail "nothing predicted"
grep -q "^openmpi *oktopk bf16 0.01" "$dir/lab/netlab.txt" || fail "no row of oktopk in the table"
thinwire=$root/scripts/netlab-train
succeeds --hosts 3 --rate 100mbit --steps 6 --runs dense,topka --out "$dir/train" cnn
grep -Eq '^topka-100mbit +6 ' "$dir/train/table.txt" || fail "no row of topka in the table of training"
[ -s "$dir/train/accuracy-100mbit.svg" ] || fail "no picture of accuracy"
! ip netns list | grep -q "$NETLAB_PREFIX" || fail "namespaces were left behind"
finish
