#!/usr/bin/python3
"""Forward and backward of vgg16 on the CPU: PyTorch against the trainer of `thinwire train`.

    bench/torch_vgg16.py [--batch B] [--threads T] [--steps S] [--rounds R] [--native PATH]

The network of CIFAR-10 (13 convolutions with bias, batch norm and ReLU, five pools, one linear
layer; 14,728,266 parameters), training mode, cross entropy, gradients of all parameters. Each round
runs torch, then the native bench (build/bench/vgg16), so that both see the same machine. A line for
each round has the samples/s of both (medians over its steps) and their ratio; the last line has the
medians over rounds. Torch runs in its faster memory format, with its heap kept (torch_topk.py).
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
CHANNELS = [64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool",
            512, 512, 512, "pool", 512, 512, 512, "pool"]


def parse_arguments():
    native = pathlib.Path(__file__).resolve().parent.parent / "build" / "bench" / "vgg16"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--native", default=str(native))
    parser.add_argument("--torch-only", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def vgg16(torch):
    layers, inputs = [], 3
    for width in CHANNELS:
        if width == "pool":
            layers.append(torch.nn.MaxPool2d(2))
            continue
        layers += [torch.nn.Conv2d(inputs, width, 3, padding=1), torch.nn.BatchNorm2d(width),
                   torch.nn.ReLU(inplace=True)]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(512, 10))


def median_seconds(torch, memory_format, arguments):
    torch.manual_seed(1)
    model = vgg16(torch).to(memory_format=memory_format).train()
    assert sum(p.numel() for p in model.parameters()) == 14728266
    images = torch.randn(arguments.batch, 3, 32, 32).contiguous(memory_format=memory_format)
    labels = torch.randint(0, 10, (arguments.batch,))
    times = []
    for _ in range(arguments.steps + 2):
        model.zero_grad(set_to_none=False)
        begin = time.perf_counter()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def time_torch(arguments):
    import torch

    torch.set_num_threads(arguments.threads)
    formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    result = {name: arguments.batch / median_seconds(torch, value, arguments)
              for name, value in formats.items()}
    return {**result, "best": max(result.values()), "version": torch.__version__}


def run_torch(arguments):
    command = [sys.executable, __file__, "--torch-only", f"--batch={arguments.batch}",
               f"--threads={arguments.threads}", f"--steps={arguments.steps}"]
    output = subprocess.run(command, env={**os.environ, **HEAP_KEPT}, check=True,
                            capture_output=True, text=True).stdout
    return json.loads(output)


def run_native(arguments):
    command = [arguments.native, str(arguments.batch), str(arguments.threads),
               str(arguments.steps)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output)


def report(arguments):
    print(f"vgg16 forward + backward, batch {arguments.batch}, {arguments.threads} threads, "
          f"samples/s (medians of {arguments.steps} steps)")
    print(f"{'round':>6} {'torch nchw':>11} {'torch nhwc':>11} {'native':>8} {'of gemm':>8} "
          f"{'native/torch':>13}")
    theirs, ours, ratios = [], [], []
    for number in range(1, arguments.rounds + 1):
        torch, native = run_torch(arguments), run_native(arguments)
        ratios.append(native["samples_per_s"] / torch["best"])
        theirs.append(torch["best"])
        ours.append(native["samples_per_s"])
        print(f"{number:>6} {torch['nchw']:11.1f} {torch['nhwc']:11.1f} "
              f"{native['samples_per_s']:8.1f} {native['of_gemm']:8.2f} {ratios[-1]:13.2f}",
              flush=True)
    print(f"median {'':>11} {statistics.median(theirs):11.1f} {statistics.median(ours):8.1f} "
          f"{'':>8} {statistics.median(ratios):13.2f}   (torch {torch['version']}, its better one)")


def main():
    arguments = parse_arguments()
    if arguments.torch_only:
        print(json.dumps(time_torch(arguments)))
    else:
        report(arguments)


if __name__ == "__main__":
    main()
