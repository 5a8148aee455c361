#!/usr/bin/python3
"""DDP steps with and without thinwire.compress, ranks as processes of this machine over gloo; or as
one rank of a job that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, as by torchrun.

    bench/torch_hook.py [--ranks 4] [--width 1000] [--density 0.01] [--schemes oktopk,topka]
                        [--steps 20] [--device cpu]

The model is a perceptron of 4 layers of width x width. One line for plain DDP, one for each scheme:
milliseconds a step (median), and the state's own summary.
"""
import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("THINWIRE_LIBRARY", str(ROOT / "build" / "libthinwire.so"))
sys.path.insert(0, str(ROOT / "python"))
import thinwire  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--schemes", default="oktopk,topka")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def time_steps(options, scheme):
    """Seconds of the median step, and the summary."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(options.width, options.width, bias=False) for _ in range(4)]
    network = DDP(torch.nn.Sequential(*layers).to(options.device))
    state = None
    if scheme is not None:
        state = thinwire.compress(network, scheme=scheme, density=options.density)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    inputs = torch.randn(16, options.width, device=options.device)
    times = []
    for _ in range(options.steps + 3):
        begin = time.perf_counter()
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        optimizer.step()
        if options.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[3:]), state.summary() if state is not None else "plain DDP"


def play(rank, options, store):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("USE_LIBUV", "0")     # Debian 13's torch 2.6 is built without it
    dist.init_process_group("gloo", store, rank=rank, world_size=options.ranks)
    for scheme in [None, *options.schemes.split(",")]:
        seconds, summary = time_steps(options, scheme)
        if rank == 0:
            print(f"{1e3 * seconds:9.2f} ms a step: {summary}", flush=True)


def main():
    options = parse_arguments()
    if "RANK" in os.environ:
        options.ranks = int(os.environ["WORLD_SIZE"])
        play(int(os.environ["RANK"]), options, "env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(play, (options, f"file://{folder}/store"), options.ranks)


if __name__ == "__main__":
    main()
