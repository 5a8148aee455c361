#!/bin/sh
# test_report.sh - `thinwire report` as a user runs it: sh test_report.sh PATH-TO-THINWIRE [KEEP]
#
# Logs are made here, the same each time: three ordinary runs, one that was killed, one that was
# resumed, names that would break a page or a script, one step, one rank. Pages are parsed; damaged
# logs and places that cannot be written must give one line and leave the old page alone. KEEP is a
# folder for the pages and the curves, to be looked at. Prints each failure; ends with their number.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"
keep=${2:-}

# report ARGS...: makes $dir/page.html with status 0
report() {
    succeeds report "$@" --out "$dir/page.html"
}

# has TEXT, lacks TEXT: whether the page holds it
has() {
    grep -qF -- "$1" "$dir/page.html" || fail "the page does not say: $1"
}
lacks() {
    ! grep -qF -- "$1" "$dir/page.html" || fail "the page says: $1"
}

# log NAME SCHEME STEPS RANKS: a run on stdout, through to its end
log() {
    awk -v name="$1" -v scheme="$2" -v steps="$3" -v ranks="$4" '
    function wobble(i) { return sin(i * 12.9898 + length(scheme)) }
    BEGIN {
        n = 93322; k = scheme == "dense" ? n : 933; pi = 3.14159265
        printf "{\"kind\":\"run\",\"version\":1,\"name\":\"%s\",\"model\":\"cnn\"," \
            "\"parameters\":%d,\"data\":\"fashion-mnist\",\"scheme\":\"%s\",\"select\":\"exact\"," \
            "\"exchange\":\"%s\",\"density\":%g,\"nranks\":%d,\"transport\":\"threads\"," \
            "\"batch\":32,\"steps\":%d,\"epochs\":1,\"seed\":1,\"optimizer\":\"sgd\",\"lr\":0.05}\n",
            name, n, scheme, scheme, k / n, ranks, steps
        for (s = 0; s < steps; s++) {
            goal = scheme == "randomk" ? 0.5 : 0.88
            accuracy = 0.1 + (goal - 0.1) * (1 - exp(-5 * s / steps)) + 0.01 * wobble(s)
            loss = 2.3 * exp(-4 * s / steps) + 2 * (1 - goal) + 0.05 * wobble(3 * s)
            count = scheme == "oktopk" ? int(k * (1 + 0.2 * sin(s / 7))) : k
            sent = ranks == 1 ? 0 : scheme == "dense" ? int(8 * n * (ranks - 1) / ranks) : 14 * count
            time = 0.010 + 0.001 * wobble(s)
            elapsed += time
            printf "{\"kind\":\"step\",\"step\":%d,\"epoch\":0,\"loss\":%.6f,\"accuracy\":%.4f," \
                "\"lr\":0.05,\"k\":%d,\"selected\":%d,\"applied\":%d,\"payload_sent\":%d," \
                "\"payload_recv\":%d,\"control\":%d,\"time_s\":%.6f,\"data_s\":0.0004," \
                "\"forward_s\":0.003,\"backward_s\":0.0045,\"select_s\":%g,\"exchange_s\":0.0012," \
                "\"apply_s\":0.0001,\"optimiser_s\":0.0003,\"wait_s\":0.0004,\"exposed_s\":0.0007," \
                "\"elapsed_s\":%.6f,\"skipped\":0,\"later\":[1]}\n",
                s, loss, accuracy, k, count, k, sent, sent, k == n ? 0 : 900, time,
                k == n ? 0 : 0.0005, elapsed
            if (s % 20 == 19) {
                printf "{\"kind\":\"evaluation\",\"step\":%d,\"epoch\":1,\"loss\":%.6f," \
                    "\"accuracy\":%.4f,\"elapsed_s\":%.6f}\n", s + 1, loss, accuracy, elapsed
            }
            if (s % 40 == 0 && k < n) {
                width = 0.002 * (1 + 3 * s / steps)
                printf "{\"kind\":\"snapshot\",\"step\":%d,\"low\":%g,\"high\":%g,\"counts\":[",
                    s, -6 * width, 6 * width
                for (b = 0; b < 64; b++) {
                    x = (b - 31.5) * 12 / 64
                    printf "%s%d", b ? "," : "", n * 12 / 64 / sqrt(2 * pi) * exp(-x * x / 2)
                }
                printf "],\"n\":%d,\"k\":%d,\"contraction\":%.6f,\"bound_topk\":%.6f," \
                    "\"bound_random\":%.6f}\n", n, k, 0.55 + 0.2 * s / steps + 0.01 * wobble(s),
                    (1 - k / n) ^ 2, 1 - k / n
            }
        }
        print "{\"kind\":\"weather\",\"rain\":true}"
        printf "{\"kind\":\"end\",\"steps\":%d,\"seconds\":%.3f,\"accuracy\":%.4f,\"skipped\":0}\n",
            steps, elapsed, accuracy
    }'
}

# check PLOTS: the page is well-formed and whole, with that many plots, and needs nothing else
check() {
    if ! command -v python3 >/dev/null; then
        return
    fi
    python3 - "$dir/page.html" "$1" <<'PYTHON' >"$dir/out" 2>"$dir/err" || fail "the page is not well"
import html.parser, re, sys, xml.etree.ElementTree as tree

text = open(sys.argv[1], encoding="utf-8").read()
alone = {"meta", "br"}

class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.figures, self.captions = [], [], 0, 0

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert tag not in ("script", "link", "img", "iframe", "object", "use", "image"), tag
        assert not any(name.startswith("on") or name in ("src", "href") for name in values), values
        assert all("url(" not in (value or "") for value in values.values()), values
        if "id" in values:
            self.ids.append(values["id"])
        self.figures += tag == "figure"
        self.captions += tag == "figcaption"
        if tag not in alone:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert "svg" in self.open, tag

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

page = Page()
page.feed(text)
page.close()
assert page.open == [], page.open
assert len(page.ids) == len(set(page.ids)), page.ids
assert {"convergence", "breakdown", "traffic", "contraction", "histograms"} <= set(page.ids)
assert text.startswith("<!DOCTYPE html>") and "@import" not in text and "url(" not in text
assert "prefers-color-scheme:dark" in text and 'name="viewport"' in text
assert set(re.findall(r"https?://[^\"' <]*", text)) <= {"http://www.w3.org/2000/svg"}
drawings = re.findall(r"<svg.*?</svg>", text, re.S)
assert len(drawings) == page.figures == page.captions == int(sys.argv[2]), (len(drawings), page.figures)
for drawing in drawings:
    svg = tree.fromstring(drawing)
    names = [item.tag.split("}")[1] for item in svg.iter()]
    assert "path" in names or "polygon" in names, names
    assert set(names) <= {"svg", "g", "rect", "path", "polygon", "circle", "text", "title"}, set(names)
    assert "rgb(" not in drawing and "TWLABEL" not in drawing and "nan" not in drawing.lower()
for name in set(re.findall(r"var\(--([a-z0-9]+)", text)):
    assert text.count("--%s:#" % name) == 2, name
PYTHON
    [ -z "$keep" ] || cp "$dir/page.html" "$keep/report-$1.html"
}

# ---- help and wrong options

run report --help
[ $status -eq 0 ] || fail "report --help: status $status"
grep -qF "Usage: thinwire report RUN... [options]" "$dir/out" || fail "report --help: no usage"
for scheme in dense oktopk randomk; do
    log $scheme $scheme 200 4 >"$dir/$scheme.jsonl"
done
run report "$dir/dense.jsonl" --out "$dir/page.html"
if grep -q "lacks JSON" "$dir/err"; then
    [ $status -eq 2 ] || fail "without JSON: status $status"
    [ "$(wc -l <"$dir/err")" -eq 1 ] || fail "without JSON: expected one line"
    echo "SKIP: report: this build lacks JSON"
    finish
fi
rm -f "$dir/page.html"
refused 2 "RUN" report --out "$dir/page.html"
refused 2 "report --help" report "$dir/dense.jsonl" --nonsense
refused 2 "--out" report "$dir/dense.jsonl" --out
refused 2 "one of the logs" report "$dir/dense.jsonl" --out "$dir/dense.jsonl"
refused 2 "one of the logs" report "$dir/dense.jsonl" --curves "$dir/dense.jsonl"
refused 2 "one of step bytes seconds" report "$dir/dense.jsonl" --curves "$dir/a.svg" --axis x
refused 2 "--axis is for" report "$dir/dense.jsonl" --out "$dir/page.html" --axis bytes
refused 2 "give one of" report "$dir/dense.jsonl" --out "$dir/page.html" --curves "$dir/loss.svg"
refused 2 "give one of" report "$dir/dense.jsonl" --accuracy "$dir/a.svg" --curves "$dir/loss.svg"
refused 2 "give one of" report "$dir/dense.jsonl" --histograms "$dir/a.svg" --contraction "$dir/b.svg"

# ---- an ordinary page

plots=yes
command -v gnuplot >/dev/null || plots=no
if [ $plots = yes ]; then
    report "$dir/dense.jsonl" "$dir/oktopk.jsonl" "$dir/randomk.jsonl" --title 'Three & more'
    [ ! -s "$dir/err" ] || fail "report: said something on stderr"
    grep -qF "13 plots of 3 logs" "$dir/out" || fail "report: 13 plots expected"
    check 13
    has "<h1>Three &amp; more</h1>"
    has "3 runs of cnn (93,322 parameters) on fashion-mnist"
    has "mean of the last 5 steps"
    has "560 kB" # 8 n (P-1)/P bytes
    has "<td>baseline</td>"
    has "less)</small>"
    has "sent by rank 0, MB"
    lacks "notice\""
    lacks "one in"
    # The same logs give the same page, and - is stdout.
    cp "$dir/page.html" "$dir/first.html"
    run report "$dir/dense.jsonl" "$dir/oktopk.jsonl" "$dir/randomk.jsonl" --title 'Three & more' \
        --out -
    cmp -s "$dir/out" "$dir/first.html" || fail "report: two pages of the same logs differ"
else
    echo "SKIP: report with plots: no gnuplot; 'make deps' installs it"
fi

# ---- without gnuplot the tables remain

mkdir "$dir/empty"
PATH=$dir/empty "$thinwire" report "$dir/dense.jsonl" "$dir/oktopk.jsonl" --out "$dir/page.html" \
    >"$dir/out" 2>"$dir/err" </dev/null || fail "without gnuplot: status $?"
[ "$(wc -l <"$dir/err")" -eq 1 ] || fail "without gnuplot: expected one line"
grep -qF "gnuplot-nox" "$dir/err" || fail "without gnuplot: the package is not named"
check 0
has "gnuplot-nox"
has "oktopk"

# ---- ranks that changed: a timeline that needs no gnuplot

lacks 'id="ranks"'
change='{"kind":"members","step":50,"nranks":3,"nranks_before":4,"lost":[2],"seconds":0.25}
{"kind":"members","step":90,"nranks":4,"nranks_before":3,"left":[0],"joined":[2,3],"seconds":1.5}'
{
    log elastic oktopk 60 4 | grep -v '"kind":"end"'
    echo "$change"
    log elastic oktopk 200 4 | sed -n '/"step":60,/,$p'
} >"$dir/elastic.jsonl"
PATH=$dir/empty "$thinwire" report "$dir/elastic.jsonl" "$dir/dense.jsonl" --out "$dir/page.html" \
    >"$dir/out" 2>"$dir/err" </dev/null || fail "ranks that changed: status $?"
check 1
has '<section id="ranks">'
has "<title>step 50: rank 2 lost; 3 go on after 0.25 s</title>"
has "<title>step 90: rank 0 left; rank 2, 3 joined; 4 go on after 1.5 s</title>"
has "<td>2, 3</td>"
[ -z "$keep" ] || cp "$dir/page.html" "$keep/report-elastic.html"
for wrong in '"lost":7' '"lost":["x"]' '"nranks":-1'; do
    { head -3 "$dir/elastic.jsonl" && echo "{\"kind\":\"members\",\"step\":1,\"nranks_before\":4,\"nranks\":3,$wrong}"; } \
        >"$dir/wrong.jsonl"
    refused 1 "line 4" report "$dir/wrong.jsonl" --out "$dir/wrong.html"
done

# ---- one plot alone, for a document

says() { # says SVG TEXT...
    svg=$1
    shift
    for text in "$@"; do
        grep -qF -- "$text" "$svg" || fail "$(basename "$svg") does not say: $text"
    done
}

PATH=$dir/empty "$thinwire" report "$dir/dense.jsonl" --curves "$dir/loss.svg" \
    >"$dir/out" 2>"$dir/err" </dev/null
status=$?
[ $status -eq 1 ] || fail "curves without gnuplot: status $status, expected 1"
grep -qF "gnuplot-nox" "$dir/err" || fail "curves without gnuplot: the package is not named"
[ ! -e "$dir/loss.svg" ] || fail "curves without gnuplot: a file was written"
if [ $plots = yes ]; then
    log 'a <b> & c' randomk 3000 4 >"$dir/long.jsonl"
    run report "$dir/dense.jsonl" "$dir/long.jsonl" --curves "$dir/loss.svg"
    [ $status -eq 0 ] || fail "curves: status $status, expected 0"
    grep -qF "1 plot of 2 logs, " "$dir/out" || fail "curves: 1 plot expected"
    says "$dir/loss.svg" 'aria-label="Training loss"' ">step<" \
        ">training loss, mean of 75 steps<" ">dense<" ">a &lt;b&gt; &amp; c<"
    ! grep -qE 'var\(|rgb\(|TWLABEL|NaN' "$dir/loss.svg" || fail "curves: something is left over"
    [ "$(wc -c <"$dir/loss.svg")" -lt 40000 ] || fail "curves: too large for a document"
    [ -z "$keep" ] || cp "$dir/loss.svg" "$keep"
    # A run that diverges leaves the plot and does not flatten the others.
    sed 's/"step":150,"epoch":0,"loss":[0-9.]*/"step":150,"epoch":0,"loss":9000/' \
        "$dir/dense.jsonl" >"$dir/peak.jsonl"
    run report "$dir/peak.jsonl" --curves "$dir/peak.svg"
    says "$dir/peak.svg" ">4.5<"
    ! grep -qE '>[0-9]{2,}00<' "$dir/peak.svg" || fail "curves: the axis follows a peak"
    sed 's/"loss":[0-9.]*/"loss":null/' "$dir/dense.jsonl" >"$dir/no-loss.jsonl"
    refused 1 "no training loss" report "$dir/no-loss.jsonl" --curves "$dir/no-loss.svg"
    run report "$dir/dense.jsonl" "$dir/long.jsonl" --accuracy "$dir/accuracy.svg"
    [ $status -eq 0 ] || fail "accuracy: status $status, expected 0"
    says "$dir/accuracy.svg" 'aria-label="Test accuracy"' ">step<" ">test accuracy, %<" \
        ">dense<"
    for axis in "bytes sent by rank 0, MB" "seconds time, s"; do
        run report "$dir/dense.jsonl" "$dir/long.jsonl" --accuracy "$dir/axis.svg" --axis "${axis%% *}"
        says "$dir/axis.svg" ">${axis#* }<"
    done
    # Names of six runs stand below the plot, where they hide no line, and not in each other.
    for i in 1 2 3 4 5 6; do
        log "run-$i-of-six-with-a-name" oktopk 100 4 >"$dir/six-$i.jsonl"
    done
    run report "$dir"/six-?.jsonl --accuracy "$dir/six.svg"
    ! command -v python3 >/dev/null || python3 - "$dir/six.svg" <<'PYTHON' >"$dir/out" 2>&1 || fail "six names: $(cat "$dir/out")"
import re, sys
found = re.findall(r"translate\(([0-9.]+),([0-9.]+)\)[^>]*><text>([^<]*)<", open(sys.argv[1]).read())
axis = next(float(y) for _, y, name in found if name == "step")
places = [(float(x), float(y)) for x, y, name in found if name.startswith("run-")]
assert len(places) == 6 and all(y > axis for _, y in places), (axis, places)
width = 7 * len("run-1-of-six-with-a-name")
for i, (x, y) in enumerate(places):
    assert x + width < 640 and all(abs(y - b) > 12 or abs(x - a) > width for a, b in places[:i]), places
PYTHON
    [ -z "$keep" ] || cp "$dir/six.svg" "$keep"
    grep -v '"kind":"evaluation"' "$dir/dense.jsonl" >"$dir/no-test.jsonl"
    refused 1 "no test accuracy" report "$dir/no-test.jsonl" --accuracy "$dir/no-test.svg"
    run report "$dir/oktopk.jsonl" "$dir/long.jsonl" --contraction "$dir/caught.svg"
    [ $status -eq 0 ] || fail "contraction: status $status, expected 0"
    says "$dir/caught.svg" ">caught: 1 - contraction<" ">oktopk<" ">a &lt;b&gt; &amp; c<" \
        ">bound for Top-k, 1-(1-k/n)²<" ">bound for random k, k/n<"
    ! grep -qE 'using|TWLABEL' "$dir/caught.svg" || fail "contraction: a line has no name of its own"
    run report "$dir/dense.jsonl" "$dir/oktopk.jsonl" --contraction "$dir/caught.svg"
    ! grep -qF ">dense<" "$dir/caught.svg" || fail "contraction: a run without a line has a name"
    refused 1 "no snapshots to draw; train a sparse scheme with --snapshots N" report "$dir/dense.jsonl" --contraction "$dir/none.svg"
    run report "$dir/oktopk.jsonl" --histograms "$dir/histograms.svg"
    [ $status -eq 0 ] || fail "histograms: status $status, expected 0"
    says "$dir/histograms.svg" ">value of acc = gradient + residual<" ">entries per 0.0013 of value<" \
        ">step 0<" ">10³<"
    ! grep -qF ">1e" "$dir/histograms.svg" || fail "histograms: powers of ten in two forms"
    # What lies beyond the range is in the outermost bins, and does not show.
    sed 's/"counts":\[0,/"counts":[90000,/' "$dir/oktopk.jsonl" >"$dir/piled.jsonl"
    ! cmp -s "$dir/piled.jsonl" "$dir/oktopk.jsonl" || fail "histograms: no pile to test with"
    run report "$dir/piled.jsonl" --histograms "$dir/piled.svg"
    cmp -s "$dir/piled.svg" "$dir/histograms.svg" || fail "histograms: the outermost bins are drawn"
    refused 1 "no histograms to draw; train with --snapshots N" report "$dir/dense.jsonl" --histograms "$dir/none.svg"
    refused 2 "give one log" report "$dir/oktopk.jsonl" "$dir/long.jsonl" --histograms "$dir/two.svg"
fi

# ---- runs that were cut off, resumed, or hardly began

killed() { # killed STEPS: the first lines of oktopk, and half of the next
    awk -v last="$1" '/"step":/ && /"kind":"step"/ && seen++ == last {
        printf "%s", substr($0, 1, 100)
        exit
    } { print }' "$dir/oktopk.jsonl"
}
killed 90 >"$dir/killed.jsonl"
report "$dir/killed.jsonl"
grep -qF "cut off after 90 steps" "$dir/err" || fail "killed: no warning"
has "stops after 90 of 200 steps, in the middle of a line"
killed 0 >"$dir/begun.jsonl"
report "$dir/begun.jsonl"
has "stops after 0 of 200 steps"
{
    awk '/"kind":"step"/ && seen++ == 50 { exit } { print }' "$dir/oktopk.jsonl"
    head -1 "$dir/oktopk.jsonl"
    awk '/"kind":"step"/ { seen++ } seen > 40' "$dir/oktopk.jsonl"
} >"$dir/resumed.jsonl"
report "$dir/oktopk.jsonl" "$dir/resumed.jsonl"
has "oktopk (2)"
lacks "notice\"><strong>"
if [ $plots = yes ] && command -v python3 >/dev/null; then
    # A resumed run that went over ten steps again is the run without the interruption.
    report "$dir/oktopk.jsonl"
    sed 's/resumed.jsonl/oktopk.jsonl/' "$dir/page.html" >"$dir/first.html"
    report "$dir/resumed.jsonl"
    sed 's/resumed.jsonl/oktopk.jsonl/' "$dir/page.html" | cmp -s - "$dir/first.html" ||
        fail "a resumed run differs from one that was not"
fi
log short oktopk 1 4 >"$dir/short.jsonl"
log alone topka 30 1 >"$dir/alone.jsonl"
sed 's/"loss":[0-9.]*/"loss":null/' "$dir/oktopk.jsonl" >"$dir/nan.jsonl"
sed 's/"skipped":0}$/"skipped":7}/' "$dir/oktopk.jsonl" >"$dir/skipped.jsonl"
sed 's/"low":[^,]*,"high":[^,]*/"low":0,"high":0/' "$dir/short.jsonl" >"$dir/flat.jsonl"
report "$dir/short.jsonl" "$dir/alone.jsonl" "$dir/nan.jsonl" "$dir/skipped.jsonl" "$dir/flat.jsonl"
[ ! -s "$dir/err" ] || fail "odd runs: said something on stderr"
[ $plots = no ] || check 15
has "skipped 7 steps"

# ---- logs that leave out steps: a line stands for the steps since the line before

every() { # every N: of the lines of steps
    awk -v n="$1" '!/"kind":"step"/ || seen++ % n == 0' "$dir/dense.jsonl"
}
drawn() { # drawn TITLE: the plot of that name in the page
    tr -d '\n' <"$dir/page.html" | grep -oE "aria-label=\"$1\"(.*)" | sed 's:</svg>.*::'
}
every 20 >"$dir/thin.jsonl"
report "$dir/dense.jsonl"
drawn "Accuracy per byte sent" >"$dir/whole.svg"
report "$dir/thin.jsonl"
drawn "Accuracy per byte sent" | cmp -s - "$dir/whole.svg" || fail "bytes of steps left out are lost"
[ $plots = no ] || [ -s "$dir/whole.svg" ] || fail "no accuracy per byte"
has "mean of the last 20 steps"
has "of some runs one in 20"
has "<td>32</td><td>200</td>" # batch, steps
every 20 | sed '/"kind":"end"/d' >"$dir/thin-cut.jsonl"
report "$dir/thin-cut.jsonl"
has "stops after 200 of 200 steps"
lacks "lines of steps"
! grep -q missing "$dir/err" || fail "every 20th step: warns of missing lines"
awk '/"kind":"step"/ { seen++ } !(seen > 60 && seen <= 65) || !/"kind":"step"/' "$dir/dense.jsonl" >"$dir/gap.jsonl"
report "$dir/gap.jsonl"
grep -qF "gap.jsonl: 5 lines of steps are missing" "$dir/err" || fail "missing steps: no warning"
has "lacks 5 lines of steps"
awk '/"kind":"step"/ { seen++ } seen <= 60 || !/"kind":"step"/' "$dir/dense.jsonl" >"$dir/gap.jsonl"
report "$dir/gap.jsonl"
has "lacks 140 lines of steps"
sed 's/"scheme":"dense"/"scheme":"topka"/' "$dir/dense.jsonl" >"$dir/equal.jsonl"
report "$dir/dense.jsonl" "$dir/equal.jsonl"
has "(&plusmn;0.0)"

# ---- names that would break a page or a script

log '</title><script>alert(1)</script>' dense 60 4 >"$dir/evil1.jsonl"
log "\`touch $dir/owned\`'; system 'touch $dir/owned' #" oktopk 60 4 >"$dir/evil2.jsonl"
log '%s %n \\\" & \u0001\u0000b é日本語 a-name-that-goes-on-and-on-and-on-and-on-and-on-and-on' topka 60 4 |
    sed 's/\\u0000/\\u0007/' >"$dir/evil3.jsonl"
report "$dir/evil1.jsonl" "$dir/evil2.jsonl" "$dir/evil3.jsonl"
lacks "<script"
has "&lt;script&gt;"
has "日本語"
[ ! -e "$dir/owned" ] || fail "a name was run as a command"
[ $plots = no ] || check 13

# ---- more runs than colours

set --
for i in 1 2 3 4 5 6 7 8 9 10 11; do
    log "run-$i" oktopk $((20 + i)) 4 >"$dir/many$i.jsonl"
    set -- "$@" "$dir/many$i.jsonl"
done
report "$@"
has "class=\"dashed\""
[ $plots = no ] || check 22

# ---- damaged logs: one line with file and line, and the page stays as it was

report "$dir/dense.jsonl"
cp "$dir/page.html" "$dir/first.html"
damaged() { # damaged TEXT COMMAND...: a log that the command writes is refused with the text
    text=$1
    shift
    "$@" >"$dir/damaged.jsonl"
    refused 1 "$text" report "$dir/dense.jsonl" "$dir/damaged.jsonl" --out "$dir/page.html"
    grep -qF "damaged.jsonl" "$dir/err" || fail "damaged: the file is not named"
}
good=$dir/oktopk.jsonl
damaged 'line 7: damaged' sed '7s/.$//' "$good"
damaged 'line 7: "loss" is not a number' sed '7s/"loss":/"loss":"x","x":/' "$good"
damaged '"payload_sent" is negative' sed '7s/"payload_sent":/"payload_sent":-/' "$good"
damaged 'line 7: "step" is missing' sed '7s/"step":/"stop":/' "$good"
damaged 'line 7: no line of a run log' sed '7s/.*/[1,2]/' "$good"
damaged 'line 7: no line of a run log' sed '7s/"kind"/"sort"/' "$good"
damaged 'line 7: damaged' sed '7s/:/: \o377/' "$good"
damaged 'line 1: log version 2' sed 's/"version":1/"version":2/' "$good"
damaged 'histogram' sed 's/"low":/"low":9,"x":/' "$good"
damaged '"counts" is not a number' sed 's/"counts":\[/"counts":["a",/' "$good"
damaged 'line 1: the first line' sed 1d "$good"
damaged 'another run' cat "$good" "$dir/dense.jsonl"
damaged 'no run in it' printf ''
damaged 'line 1: damaged' printf '\177ELF'
refused 1 "missing.jsonl" report "$dir/missing.jsonl" --out "$dir/page.html"
refused 1 "cannot read" report "$dir/empty" --out "$dir/page.html"
cmp -s "$dir/page.html" "$dir/first.html" || fail "a failed report touched the page"

# ---- places that cannot be written

refused 1 "cannot be written" report "$dir/dense.jsonl" --out "$dir/nowhere/page.html"
refused 1 "not an ordinary file" report "$dir/dense.jsonl" --out "$dir/empty"
refused 1 "not an ordinary file" report "$dir/dense.jsonl" --out /dev/null
[ -c /dev/null ] || fail "/dev/null was replaced"
ln -s page.html "$dir/link.html"
run report "$dir/dense.jsonl" --out "$dir/link.html"
[ -h "$dir/link.html" ] || fail "a link was replaced by the page"
(
    ulimit -f 8 # a disk that fills up; the signal would kill, the write must fail
    trap '' XFSZ
    "$thinwire" report "$dir/dense.jsonl" --out "$dir/page.html" >"$dir/out" 2>"$dir/err" </dev/null
)
status=$?
[ $status -eq 1 ] || fail "full disk: status $status, expected 1"
grep -qF "cannot be written" "$dir/err" || fail "full disk: no reason given"
cmp -s "$dir/page.html" "$dir/first.html" || fail "half a page replaced a good one"
[ "$(find "$dir" -name 'page.html.*' | wc -l)" -eq 0 ] || fail "a temporary file was left behind"

finish
