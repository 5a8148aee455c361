#!/usr/bin/env python3
"""torchft's DiLoCo on the GPT of examples/torch_local_steps.py, to compare with.

    torchrun --nproc_per_node 4 bench/torchft_diloco.py --data tinyshakespeare.txt --size tiny \\
        --steps 1200 --local-steps 30 --run-log diloco.jsonl

Same model, data, seeds, inner steps and log as the example. torchft comes from PyPI. Each rank is a
replica group of its own; rank 0 runs the lighthouse. Bytes are those of ring allreduces.
"""
import os
import pathlib
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import torch_common  # noqa: E402
import torch_gpt  # noqa: E402
from torch_runlog import STATS, dense_step  # noqa: E402

PATIENCE = timedelta(seconds=300)


class DilocoLoop(torch_common.Loop):
    """A worker's model is its own until a round ends."""

    def __init__(self, args, task, device):
        super().__init__(args, task, device)
        self.count, host = 0, args.address
        address = [None]
        if self.first:
            self.lighthouse = LighthouseServer(f"{host}:0", dist.get_world_size())
            address = [self.lighthouse.address()]
        dist.broadcast_object_list(address)
        self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            ProcessGroupGloo(timeout=PATIENCE), task.model.load_state_dict, task.model.state_dict,
            dist.get_world_size(), use_async_quorum=False, timeout=PATIENCE,
            quorum_timeout=PATIENCE, rank=0, world_size=1, store_addr=host,
            store_port=self.store.port, lighthouse_addr=address[0], hostname=host,
            replica_id=f"worker{dist.get_rank()}", init_sync=False)
        outer = torch.optim.SGD(task.model.parameters(), args.outer_lr, args.outer_momentum,
                                nesterov=True)
        self.diloco = DiLoCo(self.manager, [task.model], self.optimizer, outer, args.local_steps,
                             use_bucketization=True)
        self.diloco.__enter__()

    def wrap(self, model):
        return model

    def compress(self):
        """DiLoCo is there from the first step on."""

    def exchange(self):
        self.count += 1
        if self.count % self.args.local_steps:
            return dict.fromkeys(STATS, 0)
        return dense_step(self.parameters, dist.get_world_size())


def main():
    parser = torch_gpt.parser(__doc__)
    parser.add_argument("--local-steps", type=int, default=30, metavar="H", help="of a round")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9, help="Nesterov's")
    parser.add_argument("--address", default="127.0.0.1", help="of this host")
    args = parser.parse_args()
    if args.graph:
        raise SystemExit("--graph: not with torchft, which was not tried with CUDA graphs")
    args.scheme = "dense"
    args.name = args.name or "torchft diloco"
    torch_gpt.train(args, DilocoLoop)
    os._exit(0)     # torchft's servers have threads that do not end


if __name__ == "__main__":
    main()
