"""Ranks as processes for the tests, and what they train.

    from ranks import run
    results = run(function, nranks, *arguments)     # function(rank, nranks, *arguments)
"""
import atexit
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings

# oneDNN 2.6, which Debian 12's torch calls for bfloat16, dies of SIGILL on processors with AMX.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError:
    print("SKIP: this Python has no torch")
    sys.exit(77)

import thinwire  # noqa: F401 - a failure shows once, not in every rank

dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 10  # DDP's first bucket would hold all of a test's model
torch.set_num_threads(1)    # before ranks are forked, which would not have the threads


def _play(rank, nranks, folder, function, arguments):
    warnings.simplefilter("ignore")     # that dense would be faster
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=nranks)
    try:
        torch.save(function(rank, nranks, *arguments), f"{folder}/result{rank}")
        atexit._run_exitfuncs()         # a forked process does not run them
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def run(function, nranks, *arguments, may_die=()):
    """What each rank returned; None for ranks of may_die that died."""
    folder = tempfile.mkdtemp()
    fork = mp.get_context("fork")
    ranks = [fork.Process(target=_play, args=(rank, nranks, folder, function, arguments))
             for rank in range(nranks)]
    try:
        for process in ranks:
            process.start()
        deadline = time.monotonic() + 100
        for rank, process in enumerate(ranks):
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode == 0 or rank in may_die, f"rank {rank}: {process.exitcode}"
        paths = [f"{folder}/result{rank}" for rank in range(nranks)]
        return [torch.load(path) if os.path.exists(path) else None for path in paths]
    finally:
        for process in ranks:
            process.kill()
        shutil.rmtree(folder)


def model(seed=1, width=40):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, width), torch.nn.Tanh(),
                               torch.nn.Linear(width, width), torch.nn.Tanh(),
                               torch.nn.Linear(width, 3))


def batch(rank, step, rows=8):
    """Inputs and targets, determined by rank and step."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(rows, 12, generator=random)
    return inputs, torch.randint(0, 3, (rows,), generator=random)


def loss(network, rank, step):
    inputs, targets = batch(rank, step)
    return torch.nn.functional.cross_entropy(network(inputs), targets)


def weights(network):
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def equal(results):
    """Whether all ranks have the same bits."""
    return all(torch.equal(results[0], other) for other in results[1:])


def main(tests):
    for test in tests:
        test()
        print("ok", test.__name__, flush=True)
