# Fills the prose of a page in Markdown to lines of at most 120 columns: paragraphs, and items of lists with their later
# lines under the text. Headings, tables, pictures, comments and what is indented as code stay as they are.
function flush(  i, line, word, room) {
  if (count == 0) return
  line = lead words[1]
  for (i = 2; i <= count; i++) {
    if (length(line) + 1 + length(words[i]) <= 120) { line = line " " words[i]; continue }
    print line
    line = hang words[i]
  }
  print line
  count = 0
}
# A word that would mean something else at the start of a line stays behind the one before it.
function take(text,  i, n, found) {
  n = split(text, found, " ")
  for (i = 1; i <= n; i++)
    if (count > 0 && found[i] ~ /^([-+*>|#]+|[0-9]+[.)])$/) words[count] = words[count] " " found[i]
    else words[++count] = found[i]
}
/^$/ || /^[#|<!]/ || /^    / { flush(); print; next }
/^(-|[0-9]+\.) / {
  flush()
  lead = substr($0, 1, index($0, " "))
  hang = substr("      ", 1, length(lead))
  take(substr($0, length(lead) + 1))
  next
}
count == 0 { lead = hang = "" }
{ take($0) }
END { flush() }
