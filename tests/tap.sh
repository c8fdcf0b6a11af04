# tap.sh - the frame of the tests that are shell scripts:  . tests/tap.sh
#
#   test_is NAME COMMAND...   passes where the command does; its output is shown where it does not
#   skip NAME REASON
#   tap_end                   the last line; its status is the script's
#
# Arguments of the script: [NAME] [--seed N]   NAME: only tests whose name contains it.  Run from the project's root.

tap_filter=
while [ $# -gt 0 ]; do
    case $1 in
    --seed) [ $# -gt 1 ] && shift ;; # nothing here is random
    *) tap_filter=$1 ;;
    esac
    shift
done
tap_n=0 tap_failed=0
mkdir -p build/tests || exit 1
tap_log=build/tests/$(basename "$0" .sh).log

test_is() {
    tap_name=$1
    shift
    case $tap_name in *"$tap_filter"*) ;; *) return ;; esac
    tap_n=$((tap_n + 1))
    if "$@" >"$tap_log" 2>&1; then
        echo "ok $tap_n - $tap_name"
    else
        tap_failed=$((tap_failed + 1))
        head -n 30 "$tap_log" | sed 's/^/# /'
        echo "not ok $tap_n - $tap_name"
    fi
}

skip() {
    case $1 in *"$tap_filter"*) ;; *) return ;; esac
    tap_n=$((tap_n + 1))
    echo "ok $tap_n - $1 # SKIP $2"
}

tap_end() {
    echo "1..$tap_n"
    [ $tap_failed -eq 0 ]
}
