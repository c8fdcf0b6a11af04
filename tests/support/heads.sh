# heads.sh - reads the head of an example:  . tests/support/heads.sh
#
# In a head, "Expected output:" and other titles are followed by indented lines.

# The lines of a section of a head, without their indentation.
section() { # FILE TITLES
    awk -v titles="$2" '
        { sub(/ *\*\/ *$/, "") }
        inside && /^ \*  / {
            text = substr($0, 3)
            if (!indent) { match(text, /^ */); indent = RLENGTH }
            print substr(text, indent + 1)
            next
        }
        { inside = 0 }
        $0 ~ "^ \\* (" titles "):" { inside = 1; indent = 0; sub(/^[^:]*: */, ""); if ($0 != "") print }
        NR > 40 { exit }' "$1"
}

# Is the text the pattern, line by line, with "..." for anything?
matches() { # PATTERN_FILE TEXT_FILE
    sed -e 's/[][\.*^$]/\\&/g' -e 's/\\\.\\\.\\\./.*/g' -e 's/^/^/' -e 's/$/$/' "$1" >"$2.patterns"
    [ "$(wc -l <"$1")" -eq "$(wc -l <"$2")" ] || return 1
    while IFS= read -r pattern <&3; do
        IFS= read -r line <&4 || return 1
        printf '%s\n' "$line" | grep -q -e "$pattern" || return 1
    done 3<"$2.patterns" 4<"$2"
}
