#!/usr/bin/env python3
"""Processes are killed and join while they sum a vector, step after step: torchft against thinwire.

    cmake --build build --target bench_churn_worker
    python3 bench/churn_peers.py thinwire-dense         or thinwire-oktopk, thinwire-topka, torchft
    python3 bench/churn_peers.py torchft --calm         nobody is killed, nobody joins

6 processes over loopback begin. Every 1 to 3 seconds one is killed with SIGKILL or another joins, so
that 4 to 8 live; the seed decides which, alike for all peers. Prints

    steps           completed by the job
    lost per death  seconds from the signal until one of the others has completed a step that began
                    after it, or until the end: median and largest. Without the last 10 s
    differ          steps of which two processes have different results
    skipped         steps that a process has not completed, although it has completed earlier and
                    later ones; torchft lets it take over the state of another

torchft comes from PyPI. Its lighthouse is told to wait for nobody for longer than a second, its
Manager for 5 s, as thinwire's group.
"""
import argparse
import collections
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from datetime import timedelta

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST, FEWEST, MOST = 6, 4, 8
TIMEOUT = 5     # seconds


# ---- one process

class Thinwire:
    def __init__(self, args):
        self.command = [ROOT / "build/bench/churn_worker", f"127.0.0.1:{free_port()}"]
        self.rest = [str(args.n), args.peer.split("-")[1]]

    def start(self, number, log):
        rank = str(number) if number < FIRST else "-1"
        return subprocess.Popen([*self.command, rank, str(FIRST), str(number), *self.rest],
                                stdout=log, stderr=log).pid

    def close(self):
        pass


class Torchft:
    """Processes are forks of this one, which has imported torch: importing takes seconds."""

    def __init__(self, args):
        self.n, reader, writer = args.n, *os.pipe()
        self.lighthouse = os.fork()
        if self.lighthouse == 0:
            self._silence()
            from torchft import coordination
            server = coordination.LighthouseServer(
                bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=args.join_timeout,
                heartbeat_timeout_ms=args.heartbeat_timeout)
            os.write(writer, server.address().encode())
            signal.pause()
        self.address = os.read(reader, 1000).decode()

    @staticmethod
    def _silence():
        """It logs every step."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def start(self, number, log):
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 1)
            self._silence()
            try:
                self._work(number)
            finally:
                os._exit(1)
        return child

    def _work(self, number):
        import torch
        from torch.distributed import TCPStore
        from torchft import Manager, ProcessGroupGloo
        torch.set_num_threads(1)
        seconds = timedelta(seconds=TIMEOUT)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        manager = Manager(ProcessGroupGloo(timeout=seconds), lambda _: None, lambda: {}, 2,
                          timeout=seconds, quorum_timeout=timedelta(seconds=60), rank=0,
                          world_size=1, store_addr="127.0.0.1", store_port=store.port,
                          lighthouse_addr=self.address, replica_id=f"process{number}",
                          hostname="127.0.0.1", init_sync=False)
        torch.manual_seed(number)
        gradient = torch.rand(self.n) - 0.5
        result = torch.empty_like(gradient)
        while True:
            begin = time.monotonic()
            manager.start_quorum()
            result.copy_(gradient)
            manager.allreduce(result).wait()
            step = manager.current_step()
            if manager.should_commit():
                print(step, begin, time.monotonic(), f"{zlib.crc32(result.numpy()):x}", flush=True)

    def close(self):
        os.kill(self.lighthouse, signal.SIGKILL)
        os.waitpid(self.lighthouse, 0)


# ---- the schedule

def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def churn(peer, args, folder):
    """Returns when processes were killed, and by their numbers which."""
    rng, living, deaths, number = random.Random(args.seed), {}, {}, 0

    def begin_one():
        nonlocal number
        with open(folder / str(number), "w") as log:
            living[number] = peer.start(number, log)
        number += 1
    for _ in range(FIRST):
        begin_one()
    while not all(os.path.getsize(folder / str(one)) > 0 for one in range(FIRST)):
        time.sleep(0.1)
    begin = time.monotonic()
    next_event = begin + 2
    while time.monotonic() < begin + args.seconds:
        time.sleep(0.001)
        if args.calm or time.monotonic() < next_event:
            continue
        next_event += rng.uniform(1, 3)
        if len(living) > FEWEST and (len(living) == MOST or rng.random() < 0.6):
            victim = rng.choice(sorted(living))
            deaths[victim] = time.monotonic()
            end(living.pop(victim))
        else:
            begin_one()
    stop = time.monotonic()
    for pid in living.values():
        end(pid)
    return begin, stop, deaths, number


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# ---- the table

def read(path):
    """{step: (begin, end, hash)} and what else was printed."""
    steps, others = {}, []
    for line in path.read_text().splitlines():
        words = line.split()
        if len(words) == 4 and words[0].isdigit():
            steps[int(words[0])] = (float(words[1]), float(words[2]), words[3])
        else:
            others.append(line)
    return steps, others


def table(args, folder, begin, stop, deaths, number):
    logs = [read(folder / str(one))[0] for one in range(number)]
    hashes, ends = collections.defaultdict(set), {}
    for log in logs:
        for step, (_, when, text) in log.items():
            hashes[step].add(text)
            ends[step] = min(when, ends.get(step, when))
    done = sum(begin <= when < stop for when in ends.values())
    skipped = sum(max(log) - min(log) + 1 - len(log) for log in logs if log)
    losses = [min((when for other, log in enumerate(logs) if other != victim
                   for start, when, _ in log.values() if start > killed), default=stop) - killed
              for victim, killed in deaths.items() if killed < stop - 10]
    spent = f"{statistics.median(losses):.3f}, {max(losses):.3f}" if losses else "-"
    print(f"{args.peer}: {stop - begin:.0f} s, {number - FIRST} joined "
          f"({sum(not log for log in logs)} not in time), {len(deaths)} killed; steps {done}, "
          f"lost per death {spent} s; differ {sum(len(one) > 1 for one in hashes.values())}, "
          f"skipped {skipped}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("thinwire-dense", "thinwire-oktopk", "thinwire-topka",
                                         "torchft"))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--n", type=int, default=1000000, help="elements of the vector")
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--heartbeat-timeout", type=int, default=1000, metavar="MS")
    parser.add_argument("--join-timeout", type=int, default=1000, metavar="MS")
    parser.add_argument("--logs", metavar="FOLDER", help="keep what the processes print")
    args = parser.parse_args()
    if args.peer == "torchft":
        import torchft  # noqa: F401 - before the forks
    peer = Torchft(args) if args.peer == "torchft" else Thinwire(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.logs or temporary)
        folder.mkdir(exist_ok=True)
        try:
            table(args, folder, *churn(peer, args, folder))
        finally:
            peer.close()


if __name__ == "__main__":
    sys.exit(main())
