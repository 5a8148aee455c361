#!/usr/bin/env python3
"""Exact selection against torch on a GPU, in one run.

    bench/torch_gpu.py [--n N,N] [--densities 0.001,0.01] [--steps S] [--library PATH]

For each size and density, medians in microseconds by CUDA events of
  bare torch  e.add_(g): the pass that error feedback needs in any case
  bare ours   the same pass by tw_cuda_accumulate
  thinwire    tw_selector_run and tw_selector_commit, method exact, on torch's current stream
  /bare       thinwire over the faster of the two bare passes
  topk        torch: e.add_(g), topk of the magnitudes, gather, zero what was sent; x: times slower
  gauss_k     torch: the same with Gaussian_k's threshold (Shi et al., 2019: mean and deviation,
              normal quantile, up to 4 corrections) instead of topk; x: times slower; count/k
They take turns step by step, each with its own residual. Gradients differ from step to step. Before
each timed call a pass over other memory keeps the GPU busy until the work is queued, and flushes
its cache. At the start thinwire's selection is compared with torch.topk's.
"""
import argparse
import ctypes
import os
import pathlib
import statistics
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("THINWIRE_LIBRARY", str(ROOT / "build" / "libthinwire.so"))
sys.path.insert(0, str(ROOT / "python"))
from thinwire.library import CUDA, SelectParams  # noqa: E402

WARM_STEPS = 5
SPIN_ELEMENTS = 64 << 20  # 768 MiB to move: 0.2 ms at 4 TB/s
SHIFT_UNIT, SHIFT_COUNT, SHIFT_STRIDE = 16, 251, 97  # as in `thinwire bench select`


class Sparse(ctypes.Structure):
    """tw_sparse."""

    _fields_ = [("count", ctypes.c_int64), ("idx", ctypes.c_void_p), ("val", ctypes.c_void_p)]


class Library:
    """The calls of libthinwire used here. A call that fails ends the program."""

    SIGNATURES = {
        "tw_selector_create": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64,
                               ctypes.POINTER(SelectParams)],
        "tw_selector_run": [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Sparse)],
        "tw_selector_wait": [ctypes.c_void_p, ctypes.POINTER(Sparse)],
        "tw_selector_commit": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64],
        "tw_cuda_accumulate": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p],
    }

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tw_last_error.restype = ctypes.c_char_p
        self.library.tw_selector_free.argtypes = [ctypes.c_void_p]
        self.library.tw_selector_free.restype = None
        for name, types in self.SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = types, ctypes.c_int
            setattr(self, name[len("tw_"):], self.checked(name, function))

    def checked(self, name, function):
        def call(*arguments):
            if function(*arguments) != 0:
                sys.exit(f"{name}: {self.library.tw_last_error().decode()}")
        return call


class Selector:
    """A selector of method exact on the current GPU and stream."""

    def __init__(self, library, n, k):
        self.library, self.handle, self.sparse = library, ctypes.c_void_p(), Sparse()
        params = SelectParams(method=b"exact", k=k, device=CUDA,
                              ordinal=torch.cuda.current_device(),
                              stream=torch.cuda.current_stream().cuda_stream)
        library.selector_create(ctypes.byref(self.handle), n, ctypes.byref(params))

    def step(self, grad):
        self.library.selector_run(self.handle, grad.data_ptr(), ctypes.byref(self.sparse))
        self.library.selector_commit(self.handle, None, 0)

    def first_step(self, grad):
        """A step that returns its selection: idx and val as tensors."""
        self.library.selector_run(self.handle, grad.data_ptr(), ctypes.byref(self.sparse))
        self.library.selector_wait(self.handle, ctypes.byref(self.sparse))
        idx = copy_of(self.sparse.idx, self.sparse.count, torch.int32)
        val = copy_of(self.sparse.val, self.sparse.count, torch.float32)
        self.library.selector_commit(self.handle, None, 0)
        return idx.long(), val

    def free(self):
        self.library.library.tw_selector_free(self.handle)


def copy_of(pointer, count, dtype):
    """A tensor with count elements of GPU memory, copied by CUDA's driver."""
    tensor = torch.empty(count, dtype=dtype, device="cuda")
    torch.cuda.synchronize()
    copy = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoD_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]
    error = copy(tensor.data_ptr(), pointer, count * tensor.element_size())
    if error != 0:
        sys.exit(f"cuMemcpyDtoD: error {error}")
    torch.cuda.synchronize()
    return tensor


def torch_topk(residual, grad, k):
    acc = residual.add_(grad)
    idx = torch.topk(acc.abs(), k, sorted=False).indices
    values = acc.index_select(0, idx)
    acc.index_fill_(0, idx, 0.0)
    return idx, values


def torch_gaussian(residual, grad, k):
    acc = residual.add_(grad)
    deviation, mean = torch.std_mean(acc)
    quantile = statistics.NormalDist(0.0, 1.0).inv_cdf(1.0 - k / acc.numel() / 2.0)
    threshold = float(mean) + quantile * float(deviation)
    magnitudes = acc.abs()
    idx = (magnitudes > threshold).nonzero().view(-1)
    for _ in range(4):
        if idx.numel() < 2 * k / 3:
            threshold *= 0.5
        elif idx.numel() > 4 * k / 3:
            threshold *= 1.5
        else:
            break
        idx = (magnitudes > threshold).nonzero().view(-1)
    values = acc.index_select(0, idx)
    acc.index_fill_(0, idx, 0.0)
    return idx, values


def difference(grad, k, idx, val):
    """What is wrong with a first selection: expected are the k largest magnitudes, in index order.
    None: nothing. Of equal magnitudes torch takes any, thinwire the smaller indices."""
    expected = torch.topk(grad.abs(), k, sorted=False)
    if idx.numel() != k:
        return f"{idx.numel()} entries, expected {k}"
    if not bool((idx[1:] > idx[:-1]).all()):
        return "indices do not ascend"
    if not torch.equal(grad[idx].view(torch.int32), val.view(torch.int32)):
        return "values are not those at the indices"
    if not torch.equal(val.abs().sort().values, expected.values.sort().values):
        return "magnitudes differ from torch.topk's"
    least = expected.values.min()
    theirs = expected.indices[expected.values > least].sort().values
    if not torch.equal(idx[val.abs() > least], theirs):
        return "indices differ from torch.topk's"
    tied = (grad.abs() == least).nonzero().view(-1)
    if not torch.equal(idx[val.abs() == least], tied[: k - theirs.numel()]):
        return "of equal magnitudes not the smaller indices"
    return None


class Clock:
    def __init__(self):
        self.sum = torch.zeros(SPIN_ELEMENTS, device="cuda")
        self.add = torch.zeros(SPIN_ELEMENTS, device="cuda")
        self.begin = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def time_us(self, work, grad):
        self.sum.add_(self.add)
        self.begin.record()
        work(grad)
        self.end.record()
        self.end.synchronize()
        return self.begin.elapsed_time(self.end) * 1e3


def gradient_at(base, n, step):
    start = step * SHIFT_STRIDE % SHIFT_COUNT * SHIFT_UNIT
    return base[start : start + n]


def measure(library, base, clock, n, k, steps):
    """Medians by name, and Gaussian_k's mean count over k."""
    selector = Selector(library, n, k)
    first = gradient_at(base, n, 0)
    wrong = difference(first, k, *selector.first_step(first))
    if wrong is not None:
        sys.exit(f"n {n}, k {k}: thinwire's first selection is wrong: {wrong}")
    stream = torch.cuda.current_stream().cuda_stream
    sums = [torch.zeros(n, device="cuda") for _ in range(4)]
    counts = []

    def bare_ours(grad):
        library.cuda_accumulate(sums[1].data_ptr(), grad.data_ptr(), n, stream)

    def gaussian(grad):
        counts.append(torch_gaussian(sums[3], grad, k)[0].numel())

    works = {
        "bare torch": lambda grad: sums[0].add_(grad),
        "bare ours": bare_ours,
        "thinwire": selector.step,
        "topk": lambda grad: torch_topk(sums[2], grad, k),
        "gaussian": gaussian,
    }
    times = {name: [] for name in works}
    for step in range(1, 1 + WARM_STEPS + steps):
        grad = gradient_at(base, n, step)
        for name, work in works.items():
            times[name].append(clock.time_us(work, grad))
    torch.cuda.synchronize()
    selector.free()
    medians = {name: statistics.median(list_[WARM_STEPS:]) for name, list_ in times.items()}
    return medians, statistics.mean(counts[WARM_STEPS:]) / k


def report(arguments):
    library, clock = Library(arguments.library), Clock()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
          f"medians of {arguments.steps} in us")
    print(f"{'n':>11} {'density':>8} {'bare torch':>10} {'bare ours':>10} {'thinwire':>9} "
          f"{'/bare':>6} {'topk':>9} {'x':>6} {'gauss_k':>9} {'x':>6} {'count/k':>8}")
    for n in map(int, arguments.n.split(",")):
        torch.manual_seed(1)
        base = torch.randn(n + SHIFT_COUNT * SHIFT_UNIT, device="cuda")
        for density in map(float, arguments.densities.split(",")):
            k = max(1, round(density * n))
            us, count = measure(library, base, clock, n, k, arguments.steps)
            mine, bare = us["thinwire"], min(us["bare torch"], us["bare ours"])
            print(f"{n:>11,} {density:>8g} {us['bare torch']:10.1f} {us['bare ours']:10.1f} "
                  f"{mine:9.1f} {mine / bare:6.2f} {us['topk']:9.1f} {us['topk'] / mine:6.1f} "
                  f"{us['gaussian']:9.1f} {us['gaussian'] / mine:6.1f} {count:8.2f}", flush=True)
    print("thinwire's first selections are exact: the same as torch.topk's")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", default="14728266,133547324")
    parser.add_argument("--densities", default="0.001,0.01")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--library", default=os.environ["THINWIRE_LIBRARY"])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU; this needs one, and a torch that is built for CUDA")
    report(arguments)


if __name__ == "__main__":
    main()
