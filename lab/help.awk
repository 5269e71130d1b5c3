# `make help`: each target of the Makefile with the text above it, below the headings.
function told(line, text,    word, count, i) {
    count = split(text, word, " ")
    for (i = 1; i <= count; i++) {
        if (length(line) + length(word[i]) > 79) {
            print line
            line = sprintf("%16s", "")
        }
        line = line " " word[i]
    }
    print line
}
/^#### / { printf "%s%s:\n\n", headings++ ? "\n" : "", substr($0, 6) }
/^## / { text = substr($0, 4) }
/^[a-z-]+:/ && text != "" {
    told(sprintf("  %-14s", substr($1, 1, index($1, ":") - 1)), text)
    text = ""
}
