# plant.sh - changes of src/, all compiled into one copy of it, of which a variable of the environment makes one:
#   . tests/support/plant.sh
#
#   plant_changes LIST FOLDER   copies sources into FOLDER and makes the changes of LIST there: FOLDER/changes has NUMBER FILE TEST
#                               NAMES REASON of each, divided by tabs.  MEMO_PLANTED=NUMBER makes one of them in a program that
#                               includes FOLDER/planted.h first and links FOLDER/planted.c
#   chosen_changes FOLDER [PART...]   those whose line contains a PART
#
# A list has for each change:
#   = FILE TEST[:NAME] REASON      file in src/ (or ../extras/), program of tests/ and a part of its tests' names, what becomes wrong
#   - TEXT                         text of the file, once in it
#   + TEXT                         what it becomes: a statement if the old text ends with ;, an expression otherwise.  Text with
#                                  PLANTED, which is 1 if the change is made, else 0, replaces the old text as it is.

plant_changes() {
    list=$1 folder=$2
    rm -rf "$folder" && mkdir -p "$folder/bin" || return 1
    cp -r src scripts tests extras "$folder" # tests beside the changed headers, which "memo.h" finds first
    cat >"$folder/planted.h" <<'HEADER'
#ifdef __cplusplus
extern "C" {
#endif
int is_planted(int number);
void planted_trip(const char* condition);
#ifdef __cplusplus
}
#endif
#ifdef PLANTED_ASSERTS
#define MEMO_ASSERT(condition) ((condition) ? (void)0 : planted_trip(#condition))
#endif
HEADER
    cat >"$folder/planted.c" <<'SOURCE'
#include <stdio.h>
#include <stdlib.h>
int is_planted(int number) {
    static int planted = -1;
    if (planted < 0) planted = atoi(getenv("MEMO_PLANTED") ? getenv("MEMO_PLANTED") : "0");
    return planted == number;
}
void planted_trip(const char* condition) {
    fprintf(stderr, "\ntripped: %s\n", condition);
    abort();
}
SOURCE

    LC_ALL=C awk -v folder="$folder" '
        function read(path,    line, got, text) {
            while ((got = (getline line < path)) > 0) text = text line "\n"
            close(path)
            return text
        }
        function plant(new,    at, made) {
            at = index(text[file], old)
            if (!at || index(substr(text[file], at + length(old)), old)) {
                print "planted.sh: " file ": not once: " old >"/dev/stderr"
                exit bad = 1
            }
            made = "is_planted(" n ")"
            if (gsub(/PLANTED/, made, new) == 0)
                new = old ~ /;$/ ? "{ if (" made ") { " new " } else { " old " } }" : "(" made " ? (" new ") : (" old "))"
            text[file] = substr(text[file], 1, at - 1) new substr(text[file], at + length(old))
        }
        /^= / {
            file = $2
            split($3, test, ":")
            condition = $0
            sub(/^= [^ ]+ [^ ]+ /, "", condition)
            if (!(file in text)) text[file] = read(folder "/src/" file)
            printf "%d\t%s\t%s\t%s\t%s\n", ++n, file, test[1], test[2] == "" ? "-" : test[2], condition >(folder "/changes")
        }
        /^- / { old = substr($0, 3) }
        /^[+] / { plant(substr($0, 3)) }
        END {
            if (bad) exit 1
            for (file in text) printf "%s", text[file] >(folder "/src/" file)
        }' "$list" || return 1
    (cd "$folder" && sh scripts/amalgamate)
}

chosen_changes() {
    folder=$1
    shift
    for part in "${@:-}"; do grep -F -- "$part" "$folder/changes"; done | sort -nu
}
