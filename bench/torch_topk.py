#!/usr/bin/python3
"""Exact selection against torch.topk on the CPU, in one run.

    bench/torch_topk.py [--n N] [--densities 0.001,0.01] [--repeats R] [--thinwire PATH]

For each density, medians in milliseconds of
  topk      torch.topk(acc.abs(), k): the selection alone, unordered
  pipeline  a step with error feedback: acc = e.add_(g), abs, topk, gather, zero what was sent
  thinwire  `thinwire bench select --method exact`: the same step
and how many times faster thinwire is. Torch is timed twice: as shipped, where each call maps and
faults fresh memory, and with its heap kept (MALLOC_MMAP_MAX_=0 and a large MALLOC_TRIM_THRESHOLD_).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HEAP_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def parse_arguments():
    build = pathlib.Path(__file__).resolve().parent.parent / "build" / "thinwire"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=14728266)
    parser.add_argument("--densities", default="0.001,0.01")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--thinwire", default=str(build))
    parser.add_argument("--torch-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def median_ms(function, repeats):
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        function()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[1:])


def time_torch(n, density, repeats):
    """Runs in a child process: the environment at its start sets the heap's behaviour."""
    import torch

    torch.manual_seed(1)
    k = max(1, round(density * n))
    grad, residual = torch.randn(n), torch.zeros(n)

    def pipeline():
        residual.add_(grad)
        idx = torch.topk(residual.abs(), k, sorted=False).indices
        values = residual[idx]
        residual[idx] = 0
        return values

    acc = torch.randn(n)
    return {
        "topk": median_ms(lambda: torch.topk(acc.abs(), k, sorted=False), repeats),
        "pipeline": median_ms(pipeline, repeats),
        "threads": torch.get_num_threads(),
        "version": torch.__version__,
    }


def run_torch(arguments, density, environment):
    command = [sys.executable, __file__, "--torch-only", f"--n={arguments.n}",
               f"--densities={density}", f"--repeats={arguments.repeats}"]
    output = subprocess.run(command, env={**os.environ, **environment}, check=True,
                            capture_output=True, text=True).stdout
    return json.loads(output)


def run_thinwire(arguments, density):
    command = [arguments.thinwire, "bench", "select", "--method=exact", f"--n={arguments.n}",
               f"--density={density}", "--json=-"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(output)


def report(arguments):
    print(f"n = {arguments.n:,}, medians of {arguments.repeats} in ms; "
          "x: times slower than thinwire")
    print(f"{'density':>8} {'thinwire':>9} {'floor':>7}  {'torch':<12} {'topk':>9} {'x':>7} "
          f"{'pipeline':>9} {'x':>7}")
    for density in arguments.densities.split(","):
        ours = run_thinwire(arguments, density)
        if not ours["exact"]:
            sys.exit("thinwire's selection was not exact")
        mine = ours["time_us"] / 1e3
        for name, environment in (("as shipped", {}), ("heap kept", HEAP_KEPT)):
            torch = run_torch(arguments, density, environment)
            print(f"{density:>8} {mine:9.2f} {ours['floor_us'] / 1e3:7.2f}  {name:<12} "
                  f"{torch['topk']:9.1f} {torch['topk'] / mine:7.1f} "
                  f"{torch['pipeline']:9.1f} {torch['pipeline'] / mine:7.1f}")
    print(f"torch {torch['version']} with {torch['threads']} threads, "
          f"thinwire {ours['arch']} with {ours['threads']}; floor: the bare pass e += g")


def main():
    arguments = parse_arguments()
    if arguments.torch_only:
        print(json.dumps(time_torch(arguments.n, float(arguments.densities), arguments.repeats)))
    else:
        report(arguments)


if __name__ == "__main__":
    main()
