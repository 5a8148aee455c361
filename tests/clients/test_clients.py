"""The examples of accelerate, Lightning and transformers, 2 ranks each: killed with SIGKILL and
resumed, they end with bitwise the weights of a run that nothing disturbed.

    make test-clients; test_clients.py NAME runs those whose name contains NAME
"""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import torch
from safetensors.torch import load_file

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
SECONDS = 400       # that a run may take


def of_accelerate(folder):
    return load_file(folder / "60" / "model.safetensors")


def of_lightning(folder):
    return torch.load(folder / "step=60.ckpt", weights_only=True)["state_dict"]


def of_transformers(folder):
    return load_file(folder / "checkpoint-60" / "model.safetensors")


def has_printed(text):
    return lambda folder: f"\n{text}\n" in (folder / "output0").read_text()


def has_states(folder):
    """Both ranks have written their state, the last files of a checkpoint."""
    return len(list((folder / "checkpoint-40").glob("thinwire-?-of-2.pt"))) == 2


# script, when it is killed, how it is resumed, its last weights
CLIENTS = (
    ("torch_accelerate.py", has_printed("step 45"), lambda _: ("--resume", "40"), of_accelerate),
    ("torch_lightning.py", has_printed("step 45"),
     lambda folder: ("--resume", str(folder / "step=40.ckpt")), of_lightning),
    ("torch_transformers.py", has_states, lambda _: ("--resume",), of_transformers),
)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def start(script, folder, *arguments):
    """Ranks as torchrun starts them, but of which we know the processes."""
    common = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE="2",
                  LOCAL_WORLD_SIZE="2", NODE_RANK="0", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
                  CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", PYTHONUNBUFFERED="1")
    folder.mkdir(exist_ok=True)
    ranks = []
    for rank in range(2):
        with open(folder / f"output{rank}", "w") as output:
            ranks.append(subprocess.Popen(
                [sys.executable, "-W", "ignore", EXAMPLES / script, folder, *arguments],
                env=dict(common, RANK=str(rank), LOCAL_RANK=str(rank)), stdout=output,
                stderr=subprocess.STDOUT))
    return ranks


def outputs(folder):
    return "".join(f"--- rank {rank}\n{(folder / f'output{rank}').read_text()[-3000:]}"
                   for rank in range(2))


def finish(ranks, folder):
    try:
        codes = [rank.wait(SECONDS) for rank in ranks]
    finally:
        kill(ranks)
    assert codes == [0, 0], outputs(folder)


def kill(ranks):
    for rank in ranks:
        rank.kill()
        rank.wait()


def kill_when(happened, ranks, folder):
    deadline = time.monotonic() + SECONDS
    try:
        while not happened(folder):
            assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks), \
                outputs(folder)
            time.sleep(0.005)
        assert all(rank.poll() is None for rank in ranks), "the run ended before it was killed"
    finally:
        kill(ranks)


def check(script, happened, resume, weights, parent):
    undisturbed, disturbed = parent / "undisturbed", parent / "disturbed"
    finish(start(script, undisturbed), undisturbed)
    kill_when(happened, start(script, disturbed), disturbed)
    assert not any("60" in one.name for one in disturbed.iterdir()), "it was killed too late"
    finish(start(script, disturbed, *resume(disturbed)), disturbed)
    expected, found = weights(undisturbed), weights(disturbed)
    assert expected.keys() == found.keys() and expected
    for name, value in expected.items():
        assert torch.equal(value, found[name]), f"{script}: {name} differs after a restart"


def main(only):
    for script, *how in [one for one in CLIENTS if only in one[0]]:
        parent = pathlib.Path(tempfile.mkdtemp())
        try:
            check(script, *how, parent)
        finally:
            shutil.rmtree(parent)
        print("ok", script, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
