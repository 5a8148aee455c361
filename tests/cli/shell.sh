# shell.sh - functions for the tests of the command, which source it; $1 is the path of thinwire
#
# The output of the last run is in $dir/out and $dir/err, its status in $status. $dir is removed at the
# end. A test continues after a failure; `finish` ends it.

if [ $# -lt 1 ]; then # the second line of every test says how it is called
    sed -n '2s/.*: sh /usage: sh /p' "$0" >&2
    exit 2
fi
thinwire=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
failures=0
unset THINWIRE_KERNELS THINWIRE_THREADS
unset OMPI_COMM_WORLD_SIZE PMI_SIZE PMIX_RANK
# Open MPI refuses root, as in containers, and more ranks than cores unless told otherwise (OMPI_MCA_*:
# version 4, PRTE_MCA_*: version 5).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# fail TEXT...: print it with the output of the last run
fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    sed 's/^/    stdout: /' "$dir/out" | head -5
    sed 's/^/    stderr: /' "$dir/err" | head -5
}

# run ARGS...: run thinwire
run() {
    "$thinwire" "$@" >"$dir/out" 2>"$dir/err" </dev/null
    status=$?
}

# succeeds ARGS...: status 0
succeeds() {
    run "$@"
    [ $status -eq 0 ] || fail "thinwire $*: status $status, expected 0"
}

# refused STATUS TEXT ARGS...: this status, nothing on stdout, one line on stderr that contains TEXT
refused() {
    expected=$1
    text=$2
    shift 2
    run "$@"
    [ $status -eq "$expected" ] || fail "thinwire $*: status $status, expected $expected"
    [ ! -s "$dir/out" ] || fail "thinwire $*: wrote to stdout"
    [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "thinwire $*: expected one line on stderr"
    grep -qF -- "$text" "$dir/err" || fail "thinwire $*: stderr does not say: $text"
}

# same NAME A B: these texts are equal, and not empty
same() {
    if [ -z "$2" ] || [ "$2" != "$3" ]; then
        fail "$1: '$2' and '$3' differ"
    fi
}

# finish: print the number of failures; status 1 if there are any
finish() {
    echo "$failures failures"
    [ $failures -eq 0 ]
    exit
}
