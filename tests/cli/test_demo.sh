#!/bin/sh
# test_demo.sh - `thinwire demo`: sh test_demo.sh PATH-TO-THINWIRE
#
# The terminal, the logs and the page count the same bytes. Prints each failure; ends with their number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"

if "$thinwire" report "$dir/missing" 2>&1 | grep -q "lacks JSON"; then
    echo "SKIP: this build lacks JSON"
    finish
fi
long=$(printf '%0250d' 0) # longer names than 256 characters are fine
mkdir "$dir/$long"
succeeds demo --epochs 1 --logs "$dir/$long/demo" --out "$dir/demo.html"
for scheme in dense topka gaussiank gtopk oktopk randomk; do
    sed -n 's/.*"payload_sent":\([0-9]*\).*"control":\([0-9]*\).*/\1 \2/p' "$dir/$long/demo/$scheme.jsonl" |
        awk '{ sum += $1 + $2 } END {
            mean = sum / NR / 1000
            printf "%.1f %.*f\n", mean, mean < 100, mean
        }' >"$dir/kB"
    read -r kB rounded <"$dir/kB"
    same "kB that $scheme sends" "$kB" "$(awk -v s=$scheme '$1 == s { print $4 }' "$dir/out")"
    grep -qF "<td>$rounded kB</td>" "$dir/demo.html" || fail "the page does not say $rounded kB"
done
finish
