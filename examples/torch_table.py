#!/usr/bin/env python3
"""Run logs as the tables of docs/experiments.md, in Markdown.

    examples/torch_table.py LOG.jsonl...

Accuracy: last and best evaluation. Loss: last evaluation. Bytes (means) and times (medians) are of
the second half of the steps, after any warm-up of density. Runs called NAME, NAME-s2, NAME-s3 also
make one row: their means, and in brackets the lowest and the highest.
"""
import argparse
import json
import re
import statistics
import sys

TIMES = ("forward", "backward", "exposed", "optimiser", "select", "wait", "exchange", "apply")


def read(path):
    try:
        with open(path) as file:
            lines = [json.loads(line) for line in file if line.endswith("}\n")]
        kinds = {kind: [line for line in lines if line["kind"] == kind]
                 for kind in ("run", "step", "evaluation", "end")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"{path}: {error}; should be a log that --run-log wrote")
    if not kinds["run"] or not kinds["step"]:
        sys.exit(f"{path}: no step of a run in it; should be a log that --run-log wrote")
    return kinds["run"][0], kinds["step"], kinds["evaluation"], kinds["end"]


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


def number(value, digits):
    return "" if value is None else f"{value:,.{digits}f}"


def milliseconds(steps, key):
    values = [step[key] for step in steps if step.get(key) is not None]
    return 1e3 * statistics.median(values) if values else None


def sent_kb(steps):
    late = steps[len(steps) // 2:]
    return statistics.fmean(step["payload_sent"] + step["control"] for step in late) / 1e3


def spread(values, digits):
    text = [number(value, digits) for value in (statistics.fmean(values), min(values), max(values))]
    return f"{text[0]} ({text[1]} to {text[2]})"


def seeds(runs):
    """Of runs that differ in their seeds: those that came to their end."""
    groups = {}
    for run, steps, _, end in runs:
        if end and end[0]["accuracy"] is not None:
            groups.setdefault(re.sub(r"-s\d+$", "", run["name"]), []).append((steps, end[0]))
    if all(len(members) == 1 for members in groups.values()):
        return
    header("runs", "seeds", "accuracy, %", "test loss", "sent, kB a step")
    for name, members in groups.items():
        row(name, len(members), spread([100 * end["accuracy"] for _, end in members], 2),
            spread([end["loss"] for _, end in members], 4),
            number(statistics.fmean(sent_kb(steps) for steps, _ in members), 1))
    print()


def convergence(runs):
    header("run", "epochs", "accuracy, %", "best, %", "test loss", "sent, kB a step", "less",
           "replicas equal")
    for run, steps, evaluations, end in runs:
        sent = sent_kb(steps)
        dense = 8e-3 * run["parameters"] * (run["nranks"] - 1) / run["nranks"]
        last = evaluations[-1] if evaluations else {"accuracy": None, "loss": None}
        best = max((e["accuracy"] for e in evaluations if e["accuracy"] is not None), default=None)
        row(run["name"], steps[-1]["epoch"] + 1,
            *(number(None if a is None else 100 * a, 2) for a in (last["accuracy"], best)),
            number(last["loss"], 4), number(sent, 1), f"{dense / sent:.1f}x" if sent else "",
            end[0]["replicas_equal"] if end else "stopped early")


def breakdown(runs):
    header("run, ms a step", "iteration", *TIMES, "select / iteration, %")
    for run, steps, _, _ in runs:
        late = steps[len(steps) // 2:]
        whole, select = milliseconds(late, "time_s"), milliseconds(late, "select_s")
        row(run["name"], number(whole, 2),
            *(number(milliseconds(late, f"{key}_s"), 2) for key in TIMES),
            number(None if select is None else 100 * select / whole, 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", metavar="LOG", help="run log, JSON lines")
    runs = [read(path) for path in parser.parse_args().logs]
    seeds(runs)
    convergence(runs)
    print()
    breakdown(runs)


if __name__ == "__main__":
    main()
