#!/usr/bin/env python3
"""thinwire.AdamW against torch's fused AdamW on a GPU, in one run, with BERT base's parameters.

    bench/torch_adamw.py [--densities 0.001,0.01] [--steps S] [--library PATH]

Medians in microseconds by CUDA events of
  bare        e, m and v += g by tw_cuda_accumulate_adamw: the memory that AdamW before selection
              reads and writes
  torch       step() of torch.optim.AdamW(fused=True)
  thinwire    step() of thinwire.AdamW: fold, selection, decay, and the update of the parameters.
              With one rank nothing travels
  ratio       thinwire over torch
  host        how long step() keeps the CPU: torch, thinwire, which waits for the GPU
and, of thinwire's steps, the stages as stats() has them. Both optimizers have the groups that
thinwire makes of a module: no weight decay for one-dimensional parameters. They take turns step by
step, each with its own parameters. Gradients differ from step to step, and lie elsewhere. Before
each timed step passes over other memory keep the GPU busy, as a backward pass does, until step()
has queued its work.
"""
import argparse
import ctypes
import os
import pathlib
import statistics
import sys
import time
import warnings

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("THINWIRE_LIBRARY", str(ROOT / "build" / "libthinwire.so"))
sys.path.insert(0, str(ROOT / "python"))

WARM_STEPS = 20         # more than the parts of weight decay
GRADIENTS = 4           # that take turns
SPIN_ELEMENTS, SPINS = 64 << 20, 30     # 768 MiB to move, 30 times: 6 ms at 4 TB/s
WIDTH, LAYERS, VOCABULARY, POSITIONS = 768, 12, 30522, 512


def sizes():
    """Shapes of BERT base with both its heads, without shared weights: 133,547,324 elements."""
    linear = [(WIDTH, WIDTH), (WIDTH,)]
    norm = [(WIDTH,), (WIDTH,)]
    wide = [(4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,)]
    layer = 4 * linear + norm + wide + norm
    embeddings = [(VOCABULARY, WIDTH), (POSITIONS, WIDTH), (2, WIDTH)] + norm
    heads = linear + linear + norm + [(VOCABULARY, WIDTH), (VOCABULARY,), (2, WIDTH), (2,)]
    return embeddings + LAYERS * layer + heads


class Parameters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        values = [torch.randn(shape, device="cuda") / 50 for shape in sizes()]
        self.all = torch.nn.ParameterList([torch.nn.Parameter(one) for one in values])

    def groups(self):
        return [{"params": [one for one in self.all if one.dim() > 1], "weight_decay": 0.01},
                {"params": [one for one in self.all if one.dim() <= 1], "weight_decay": 0.0}]

    def give(self, gradients):
        for one, grad in zip(self.all, gradients):
            one.grad = grad


class Clock:
    def __init__(self):
        self.sum = torch.zeros(SPIN_ELEMENTS, device="cuda")
        self.add = torch.zeros(SPIN_ELEMENTS, device="cuda")
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def time_us(self, work):
        """By the GPU, and by the CPU until the call returns."""
        for _ in range(SPINS):
            self.sum.add_(self.add)
        self.begin.record()
        called = time.perf_counter()
        work()
        host = time.perf_counter() - called
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e3, host * 1e6


def bare_pass(library, n):
    vectors = [torch.zeros(n, device="cuda") for _ in range(4)]
    call = ctypes.CDLL(library).tw_cuda_accumulate_adamw
    call.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64, ctypes.c_void_p]
    stream = torch.cuda.current_stream().cuda_stream

    def work():
        if call(*(one.data_ptr() for one in vectors), n, stream) != 0:
            sys.exit("tw_cuda_accumulate_adamw failed")
    return work


def median(times, at):
    return statistics.median(one[at] for one in times[WARM_STEPS:])


def measure(arguments, density, clock, gradients):
    import thinwire
    theirs, ours = Parameters(), Parameters()
    fused = torch.optim.AdamW(theirs.groups(), lr=1e-4, betas=(0.9, 0.99), fused=True)
    optimizer = thinwire.AdamW(ours, lr=1e-4, density=density, warmup_steps=0)
    works = {"bare": bare_pass(arguments.library, sum(one.numel() for one in ours.all)),
             "torch": fused.step, "thinwire": optimizer.step}
    times = {name: [] for name in works}
    stages = []
    for step in range(WARM_STEPS + arguments.steps):
        theirs.give(gradients[step % GRADIENTS])
        ours.give(gradients[step % GRADIENTS])
        for name, work in works.items():
            times[name].append(clock.time_us(work))
        stages.append(optimizer.stats())
    bare, fused_us, mine = (median(times[name], 0) for name in works)
    print(f"{density:>8g} {bare:8.0f} {fused_us:8.0f} {mine:9.0f} {mine / bare:6.2f} "
          f"{mine / fused_us:6.2f} {median(times['torch'], 1):8.0f} "
          f"{median(times['thinwire'], 1):8.0f}", flush=True)
    steps = stages[WARM_STEPS:]
    seconds = {name: 1e6 * statistics.median(one[f"last_{name}_seconds"] for one in steps)
               for name in ("select", "agree", "exchange", "apply")}
    print("         " + ", ".join(f"{name} {us:.0f}" for name, us in seconds.items())
          + f"; selected {stages[-1]['last_selected']:,}", flush=True)
    optimizer.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--densities", default="0.001,0.01")
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--library", default=os.environ["THINWIRE_LIBRARY"])
    arguments = parser.parse_args()
    os.environ["THINWIRE_LIBRARY"] = arguments.library
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU; this needs one, and a torch that is built for CUDA")
    warnings.simplefilter("ignore")     # that the density is low from the first step on
    clock = Clock()
    gradients = [[torch.randn(shape, device="cuda") for shape in sizes()] for _ in range(GRADIENTS)]
    n = sum(one.numel() for one in gradients[0])
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {n:,} elements in "
          f"{len(gradients[0])} parameters, medians of {arguments.steps} in us")
    print(f"{'density':>8} {'bare':>8} {'torch':>8} {'thinwire':>9} {'/bare':>6} {'ratio':>6} "
          f"{'host':>8} {'host':>8}")
    for density in map(float, arguments.densities.split(",")):
        measure(arguments, density, clock, gradients)


if __name__ == "__main__":
    main()
