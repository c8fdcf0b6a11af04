# ports.sh - what port.sh of llmc, kann and infinitrain share: trees of the original and of the port, and their comparison.
# The caller sets root (memo's), folder (of the trees) and none (the words for a run without variables), and defines train, which
# leaves two files in a tree, and told, which prints what memo did.

clone() { # FROM KIND COMMIT
    from=$(cd "$1" && pwd)
    rm -rf "$folder/$2"
    git -c advice.detachedHead=false clone -q --no-checkout "$from" "$folder/$2"
    git -C "$folder/$2" fetch -q --no-recurse-submodules "$from" '+refs/*:refs/all/*'
    git -C "$folder/$2" checkout -q "$3"
}

apply_port() { # PATCH
    git -C "$folder/ported" apply --index "$root/$1"
    echo "changed lines:$(git -C "$folder/ported" diff --cached --shortstat)"
}

# A run is a list of variables.
compare() { # FILE FILE WORDS RUN...
    file=$1 other=$2 words=$3
    shift 3
    for run; do
        rm -f "ported/$file" "ported/$other"
        (export ${run:-NONE=} && train ported)
        cmp "original/$file" "ported/$file"
        cmp "original/$other" "ported/$other"
        echo "${run:-$none}: all $words are bitwise the same$(told)"
    done
}
