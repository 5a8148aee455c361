#!/usr/bin/env python3
"""LocalSteps with workers that are killed, late or join, against a run that nothing disturbs.

    python3 bench/torch_churn.py --event none killed late joined --seed 1 2 3

A perceptron on the embedded part of Fashion-MNIST; workers are processes over TCP on the loopback
interface, without torch's process group. In the middle of the run worker 1
    killed   gets SIGKILL
    late     is stopped for longer than the timeout, and joins anew when it comes back
    joined   gets SIGKILL, and a new process joins in its place
Prints the losses at the end, by the first worker, on the 2,000 images of the test set and on the
10,000 of the training set, and whether all have the same weights.
"""
import argparse
import gzip
import json
import math
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time

import torch

import thinwire

ROOT = pathlib.Path(__file__).resolve().parents[1]
EVENTS = ("none", "killed", "late", "joined")


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--event", nargs="+", choices=EVENTS, default=EVENTS)
    p.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--steps", type=int, default=3000, help="inner steps, a multiple of --every")
    p.add_argument("--every", type=int, default=30)
    p.add_argument("--density", type=float, default=1 / 64)
    p.add_argument("--wire", default="q2")
    p.add_argument("--merge", choices=("mean", "mean_of_senders"),
                   help="default: mean_of_senders, with --delayed mean")
    p.add_argument("--delayed", action="store_true",
                   help="exchanges run while the next rounds compute; nobody can join then")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--width", type=int, default=64)
    p.add_argument("--timeout", type=float, default=10.0)
    p.add_argument("--worker", help=argparse.SUPPRESS)      # JSON: what this process is
    args = p.parse_args()
    if args.steps % args.every:
        p.error("--steps: a multiple of --every")
    if args.delayed and set(args.event) & {"late", "joined"}:
        p.error("--delayed: only with --event none killed")
    return args


# ---- a worker

def idx(name, head):
    """An IDX file of the embedded part of Fashion-MNIST, without its head."""
    data = gzip.decompress((ROOT / "data" / "fashion-mnist" / f"{name}-ubyte.gz").read_bytes())
    return torch.frombuffer(bytearray(data[head:]), dtype=torch.uint8)


def load(part):
    """Images [count][784] and labels [count]."""
    labels = idx(f"{part}-labels-idx1", 8).long()
    return idx(f"{part}-images-idx3", 16).view(len(labels), -1).float() / 255 - 0.2860, labels


class Task:
    def __init__(self, args, seed):
        torch.manual_seed(seed)
        self.args, self.data = args, load("train")
        self.model = torch.nn.Sequential(torch.nn.Linear(784, args.width), torch.nn.ReLU(),
                                         torch.nn.Linear(args.width, args.width), torch.nn.ReLU(),
                                         torch.nn.Linear(args.width, 10))

    def batch_loss(self):
        images, labels = self.data
        some = torch.randint(len(labels), (self.args.batch,))
        return torch.nn.functional.cross_entropy(self.model(images[some]), labels[some])

    @torch.no_grad()
    def loss(self, part):
        images, labels = load(part)
        return float(torch.nn.functional.cross_entropy(self.model(images), labels))


def rate(args, step):
    """Rises for a twelfth of the run, then falls as a cosine."""
    first = args.steps // 12
    if step < first:
        return args.lr * (step + 1) / first
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - first) / (args.steps - first))))


def work(args, me):
    torch.set_num_threads(1)
    task = Task(args, me["seed"])
    torch.manual_seed(1000 * me["seed"] + me["number"])
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=args.lr)
    place = {"join": True} if me["joins"] else {"rank": me["number"], "workers": args.workers}
    local = thinwire.LocalSteps(task.model, optimizer, args.every, args.density, args.wire,
                                delayed=args.delayed, result=args.merge, meet=me["meet"],
                                secret=bytes.fromhex(me["secret"]), timeout=args.timeout,
                                on_loss="shrink", **place)
    while local.inner_steps < args.steps:
        if local.inner_steps == args.steps // 2 + args.every // 2 and me["happens"] != "none":
            disturb(me, args.timeout)
        optimizer.param_groups[0]["lr"] = rate(args, local.inner_steps)
        optimizer.zero_grad()
        task.batch_loss().backward()
        optimizer.step()
    if args.delayed:
        local.synchronize()     # applies the last exchange
    weights = torch.cat([one.detach().flatten() for one in task.model.parameters()])
    is_first = local.engine.transport.rank == 0
    found = {"losses": [task.loss("t10k"), task.loss("train")] if is_first else None,
             "stats": local.stats(), "weights": hash(weights.numpy().tobytes())}
    pathlib.Path(me["result"]).write_text(json.dumps(found))


def disturb(me, timeout):
    happens, me["happens"] = me["happens"], "none"
    if happens == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    waker = subprocess.Popen(["sh", "-c", f"sleep {timeout + 1}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()


# ---- a run

def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def start(common, number, folder, happens="none", joins=False):
    me = {**common, "number": number, "happens": happens, "joins": joins,
          "result": f"{folder}/{number}"}
    return subprocess.Popen([sys.executable, *sys.argv, "--worker", json.dumps(me)],
                            env={**os.environ, "PYTHONHASHSEED": "1"})


def run(args, event, seed):
    common = {"seed": seed, "meet": free_address(), "secret": secrets.token_hex(16)}
    happens = {"none": "none", "killed": "die", "late": "stop", "joined": "die"}[event]
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        workers = [start(common, number, folder, happens if number == 1 else "none")
                   for number in range(args.workers)]
        if event == "joined":
            workers[1].wait()
            workers[1] = start(common, args.workers, folder, joins=True)
        for one in workers:
            one.wait()
        results = [json.loads(one.read_text()) for one in pathlib.Path(folder).iterdir()]
        seconds = time.monotonic() - begin
    (losses, stats), = ((one["losses"], one["stats"]) for one in results
                        if one["losses"] is not None)
    lost = int(event != "none")
    if stats["lost_ranks"] != lost:     # the late one may have come back before the others waited
        raise SystemExit(f"{event}, seed {seed}: {stats['lost_ranks']} workers were lost, not "
                         f"{lost}; give another --timeout")
    equal = len({one["weights"] for one in results}) == 1
    print(f"{event:8} seed {seed}  test loss {losses[0]:.4f}  training loss {losses[1]:.4f}  "
          f"workers at the end {len(results)}  lost {stats['lost_ranks']}  "
          f"replicas {'equal' if equal else 'DIFFER'}  rounds {stats['rounds']}  {seconds:.0f} s",
          flush=True)
    return losses


def main():
    args = parse()
    if args.worker:
        work(args, json.loads(args.worker))
        return
    losses = {event: [run(args, event, seed) for seed in args.seed] for event in args.event}
    for event, those in losses.items():
        test, training = (sum(one) / len(those) for one in zip(*those))
        print(f"{event:8} mean    test loss {test:.4f}  training loss {training:.4f}")


if __name__ == "__main__":
    main()
