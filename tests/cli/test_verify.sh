#!/bin/sh
# test_verify.sh - the checks of `thinwire bench` notice wrong results: sh test_verify.sh PATH
#
# PATH is the command linked with falsify.c. Prints each failure; ends with their number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"

# notices WHAT TEXT ARGS...: without FALSIFY status 0; with it status 1, and TEXT is printed
notices() {
    what=$1
    text=$2
    shift 2
    succeeds "$@"
    export FALSIFY="$what"
    run "$@"
    unset FALSIFY
    [ $status -eq 1 ] || fail "FALSIFY=$what: status $status, expected 1"
    cat "$dir/out" "$dir/err" | grep -qE -- "$text" || fail "FALSIFY=$what: nothing says: $text"
}

set -- bench allreduce --ranks 2 --n 1000 --k 50 --steps 2 --verify
notices sum "values are wrong" "$@" --scheme dense
notices one-rank "values are wrong" "$@" --scheme dense
notices sparse "values are wrong" "$@" --scheme topka
notices residual "values are wrong" "$@" --scheme topka
notices residual "values are wrong" bench allreduce --ranks 4 --n 20000 --k 200 --steps 40 --verify \
    --scheme randomk --pattern oneregion --wire q8 --no-dense # whose remainders are rounded

set -- bench select --n 10000 --k 100 --method exact --steps 2
notices unsent "changed an entry that was not sent" "$@"
notices sent "a sent entry is still in the residual" "$@"

finish
