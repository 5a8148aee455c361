#!/usr/bin/python3
"""gloo's dense allreduce (torch.distributed), for comparison: one JSON line

    RANK=r HOSTS=p bench/gloo_allreduce.py ADDRESS N STEPS     on every host at once

ADDRESS is that of rank 0. Sums N floats STEPS times, after one sum that is not timed; time_us is
the median over steps of the slowest rank's time. scripts/netlab starts it if torch is installed.
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def one_step(vector):
    """The slowest rank's seconds."""
    dist.barrier()
    begin = time.monotonic()
    dist.all_reduce(vector)
    took = torch.tensor([time.monotonic() - begin])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    address, n, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rank, hosts = int(os.environ["RANK"]), int(os.environ["HOSTS"])
    torch.set_num_threads(1)
    os.environ.setdefault("USE_LIBUV", "0")     # Debian 13's torch 2.6 is built without it
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29555", rank=rank,
                            world_size=hosts)
    vector = torch.full((n,), float(rank))
    one_step(vector)
    wrong = int((vector != hosts * (hosts - 1) / 2).sum())
    times = [one_step(vector.fill_(1.0)) for _ in range(steps)]
    wrong += int((vector != hosts).sum())
    if rank == 0:
        print(json.dumps({"what": "peer", "scheme": "gloo", "nranks": hosts, "n": n,
                          "time_us": round(statistics.median(times) * 1e6, 1), "wrong": wrong},
                         separators=(",", ":")))


main()
