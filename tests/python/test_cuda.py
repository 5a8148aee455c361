"""Ranks that share a GPU get bit for bit the CPU's weights and residuals: with the hook, with
DistributedOptimizer, with AdamW and with torch's GradScaler. If one rank's GPU fails or is stuck, all
get errors, and their processes end. Says SKIP without a GPU."""
import sys
import time

import ranks  # noqa: F401 - says SKIP where there is no torch
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from known import Known, gradient, residuals, weights
from ranks import main, run

SIZES = {"a": 60000, "b": 3000, "c": 40}
STEPS = 10


def draw(rank, step, device, dtype=torch.float32):
    return {name: gradient(size, rank, 10 * step + i, dtype).to(device)
            for i, (name, size) in enumerate(SIZES.items())}


def outcome(network, state):
    return {"weights": {name: value.cpu() for name, value in weights(network).items()},
            "residuals": residuals(state)}


def hook(rank, device, dtype=torch.float32, ddp=None, **options):
    network = DDP(Known(dtype, **SIZES).to(device), **(ddp or {}))
    state = thinwire.compress(network, **options)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        network(draw(rank, step, device, dtype)).backward()
        optimizer.step()
    assert state.stats()["steps"] == STEPS and state.stats()["selected"] > 0
    return outcome(network, state)


def optimizer_alone(rank, device):
    network = Known(**SIZES).to(device)
    optimizer = thinwire.DistributedOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0), network.named_parameters(),
        compression=thinwire.Compression("oktopk", 0.02))
    for step in range(STEPS):
        optimizer.zero_grad()
        network(draw(rank, step, device)).backward()
        optimizer.step()
    return outcome(network, optimizer.thinwire)


def scaled(rank, device):
    """GPU: with GradScaler, and an overflow in step 4. CPU: without both, and without step 4."""
    network = DDP(Known(**SIZES).to(device), bucket_cap_mb=0.001)
    scaler = scaler_of(device)
    state = thinwire.compress(network, density=0.02, grad_scaler=scaler)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    for step in range(STEPS):
        given = draw(rank, step, device)
        if step == 4 and scaler is None:
            continue
        if step == 4 and rank == 1:
            given["a"][7] = float("inf")
        optimizer.zero_grad()
        if scaler is None:
            network(given).backward()
            optimizer.step()
        else:
            scaler.scale(network(given)).backward()
            scaler.step(optimizer)
            scaler.update()
    assert state.stats()["steps"] == STEPS - 1
    return outcome(network, state)


def adamw(rank, device, wrapped=True, scaler=None, together=False, **options):
    """With a scaler, step 4 overflows; without, there is no step 4."""
    network = Known(**SIZES).to(device)
    network = DDP(network, bucket_cap_mb=0.001) if wrapped else network
    groups = [{"params": [network.get_parameter(("module." if wrapped else "") + name)], "lr": lr}
              for name, lr in (("a", 0.01), ("b", 0.02), ("c", 0.03))]
    if together:
        groups = network.parameters()
    optimizer = thinwire.AdamW(groups, density=0.02, warmup_steps=5, model=network,
                               grad_scaler=scaler, **options)
    for step in range(STEPS):
        given = draw(rank, step, device)
        if step == 4 and scaler is None:
            continue
        if step == 4 and rank == 1:
            given["a"][7] = float("inf")
        optimizer.zero_grad()
        if scaler is None:
            network(given).backward()
            optimizer.step()
            continue
        scaler.scale(network(given)).backward()
        if not wrapped:
            optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer.stats()["steps"] == STEPS - 1
    return outcome(network, optimizer.thinwire)


def scaler_of(device):
    return torch.cuda.amp.GradScaler(init_scale=2.0**10, growth_interval=3) \
        if device != "cpu" else None


def all_of_them(rank, nranks):
    plays = {scheme: lambda device, scheme=scheme: hook(rank, device, scheme=scheme, density=0.02)
             for scheme in thinwire.schemes() if scheme not in ("dense", "auto")}   # auto: by times
    plays["bf16 wire"] = lambda device: hook(rank, device, density=0.02, wire="bf16")
    plays["float16"] = lambda device: hook(rank, device, torch.float16, density=0.02)
    plays["buckets"] = lambda device: hook(rank, device, ddp={"bucket_cap_mb": 0.001}, density=0.1)
    plays["unused"] = lambda device: hook(rank, device, ddp={"find_unused_parameters": True},
                                          density=0.1)
    plays["whole model"] = lambda device: hook(rank, device, density=0.02, whole_model=True)
    plays["optimizer"] = lambda device: optimizer_alone(rank, device)
    plays["scaler"] = lambda device: scaled(rank, device)
    for wrapped in (False, True):
        for whole_model in (False, True):
            options = {"wrapped": wrapped, "whole_model": whole_model}
            plays[f"AdamW, {options}"] = \
                lambda device, options=options: adamw(rank, device, **options)
            plays[f"AdamW with a scaler, {options}"] = \
                lambda device, options=options: adamw(rank, device, scaler=scaler_of(device),
                                                      **options)
    plays["AdamW, one group in pieces"] = \
        lambda device: adamw(rank, device, wrapped=False, together=True)
    plays["AdamW, one group in pieces, updates"] = \
        lambda device: adamw(rank, device, wrapped=False, together=True, clip_update=1e9)
    return {name: (play("cpu"), play("cuda")) for name, play in plays.items()}


def test_gpu_is_bitwise_the_cpu():
    for result in run(all_of_them, 2):
        for name, (cpu, cuda) in result.items():
            for part in ("weights", "residuals"):
                for parameter, value in cpu[part].items():
                    assert torch.equal(value, cuda[part][parameter]), (name, part, parameter)


def error_of(rank, timeout, spoil):
    """What the second backward pass raises, if rank 1 spoils it, after how many seconds, and when."""
    network = DDP(Known(**SIZES).to("cuda"), bucket_cap_mb=0.001)
    thinwire.compress(network, density=0.02, timeout=timeout, whole_model=False)
    network(draw(rank, 0, "cuda")).backward()
    torch.cuda.synchronize()
    now, begin = network(draw(rank, 1, "cuda")), time.monotonic()
    if rank == 1:
        spoil(network)
    try:
        now.backward()
        torch.cuda.synchronize()
    except Exception as error:
        end = time.monotonic()
        return type(error).__name__, str(error), end - begin, end
    return None


def asserts(rank, nranks):
    def fail_on_device(gradient):
        torch.zeros(3, device="cuda")[torch.tensor([9], device="cuda")]
    return error_of(rank, 60.0, lambda network: network.module.b.register_hook(fail_on_device))


def test_device_assert_in_backward():
    first, second = run(asserts, 2)
    assert first[0] in ("DeviceError", "TransportError") and "1" in first[1], first
    assert second[0] in ("DeviceError", "RuntimeError", "AcceleratorError") \
        and "assert" in second[1], second
    assert max(first[2], second[2]) < 10, (first, second)


def is_stuck(rank, nranks):
    return error_of(rank, 2.0, lambda network: torch.cuda._sleep(40 * 10**9))     # 20 s and more


def test_stuck_stream():
    first, second = run(is_stuck, 2)
    assert first[0] == second[0] == "TimeoutError", (first, second)
    assert "rank 1" in first[1] and "the device has not ended" in second[1], (first, second)
    assert max(first[2], second[2]) < 2.5, (first, second)
    assert time.monotonic() - second[3] < 10, "the process has waited for its GPU"


def has_gpu(rank, nranks):
    return torch.cuda.is_available()    # in a child process: CUDA does not survive a fork


if __name__ == "__main__":
    if not run(has_gpu, 1)[0]:
        print("SKIP: torch finds no GPU")
        sys.exit(77)
    main([test_gpu_is_bitwise_the_cpu, test_device_assert_in_backward, test_stuck_stream])
