#!/usr/bin/env python3
"""What PyTorch has against slow networks, on the GPT of examples/torch_gpt.py.

    torchrun --nproc_per_node 8 bench/torch_peers.py --data tinyshakespeare.txt --peer powersgd \\
        --rank 4 --dense-steps 300 --steps 1500 --run-log powersgd.jsonl
    ... --peer ddp                plain DistributedDataParallel
    ... --peer bf16               gradients sent as bfloat16, torch's own hook

Same model, data, seeds and log as the example, so that `thinwire report` shows them side by side:
`thinwire report powersgd.jsonl topka.jsonl --accuracy peers.svg --axis bytes`. PowerSGD (Vogels et
al., 2019) is torch's powerSGD_hook with its error feedback and warm start. Bytes are those of ring
allreduces of what a hook sends.
"""
import pathlib
import sys
import warnings

import torch.distributed as dist

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.6 has some for Python 3.13
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
import torch_gpt  # noqa: E402
from torch_runlog import dense_step  # noqa: E402

FEWEST_DENSE = 2    # steps that powerSGD_hook needs before its first low-rank one


class PeerLoop(torch_gpt.Loop):
    """Trains with a hook of torch's in place of thinwire."""

    def __init__(self, args, task, device):
        super().__init__(args, task, device)
        self.powersgd, self.sent = None, 0
        if args.peer == "bf16":
            self.model.register_comm_hook(None, default_hooks.bf16_compress_hook)
        elif args.peer == "powersgd":
            self.powersgd = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=args.rank,
                start_powerSGD_iter=max(args.dense_steps, FEWEST_DENSE))
            self.model.register_comm_hook(self.powersgd, powerSGD_hook.powerSGD_hook)

    def compress(self):
        """The hook is there from the first step on."""

    def exchange(self):
        words = self.parameters // 2 if self.args.peer == "bf16" else self.parameters
        if self.powersgd is not None:
            before = self.sent
            self.sent = self.powersgd.total_numel_after_compression
            words = self.sent - before or self.parameters   # 0: a dense step
        return {**dense_step(words, dist.get_world_size()), "density": words / self.parameters}


def main():
    parser = torch_gpt.parser(__doc__)
    parser.add_argument("--peer", choices=("ddp", "bf16", "powersgd"), required=True)
    parser.add_argument("--rank", type=int, default=4, help="of PowerSGD's matrices")
    args = parser.parse_args()
    if args.trace:
        raise SystemExit("--trace: not with --peer; torch.profiler shows all of it")
    args.scheme = args.peer if args.peer != "powersgd" else f"powersgd-{args.rank}"
    torch_gpt.train(args, PeerLoop)


if __name__ == "__main__":
    main()
