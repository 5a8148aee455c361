#!/usr/bin/env python3
"""The GPT of torch_gpt.py, trained with local steps: workers exchange what changed, in rounds.

    torchrun --nproc_per_node 8 examples/torch_local_steps.py --data tinyshakespeare.txt \\
        --steps 6000 --local-steps 30 --scheme topka --density 0.015625 --wire q2
    ... --scheme dense --outer-lr 0.7 --outer-momentum 0.9 --nesterov     DiLoCo, to compare with
"""

import thinwire
import torch_common
import torch_gpt
from torch_runlog import STATS, sparse_step


class Rounds:
    """LocalSteps and its inner optimizer, of which every rank has its own: one state."""

    def __init__(self, args, model, optimizer):
        warmup = (args.density_warmup or 0) // args.local_steps    # rounds
        sparse = {} if args.scheme == "dense" else {
            "density": args.density, "wire": args.wire, "decay": args.decay, "result": args.merge,
            "warmup_steps": warmup, "warmup_density": args.warmup_density,
            "warmup": args.density_schedule, "count": torch_common.count_of(args),
            "seed": args.seed}
        self.optimizer = optimizer
        self.local = thinwire.LocalSteps(
            model, optimizer, args.local_steps, outer_lr=args.outer_lr,
            outer_momentum=args.outer_momentum, nesterov=args.nesterov, delayed=args.delayed,
            scheme=args.scheme, whole_model=args.whole_model, host=args.host,
            **{"wire": None, "decay": 0.0, **sparse})

    def stats(self):
        return self.local.stats()

    def summary(self):
        return self.local.summary()

    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict(), "local": self.local.state_dict()}

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state["optimizer"])
        self.local.load_state_dict(state["local"])

    def close(self):
        self.local.close()


class Loop(torch_gpt.Loop):
    """As for the GPT; but a worker's model is its own until a round ends."""

    def __init__(self, args, task, device):
        thinwire.broadcast_parameters(task.model)
        super().__init__(args, task, device)
        self.state, self.alike = Rounds(args, task.model, self.optimizer), False

    def wrap(self, model):
        return self.record(model) if self.args.graph else model

    def exchange(self):
        """Bytes and times of the round that this step has ended; else none."""
        return sparse_step(self.state) if self.state.local.count == 0 else dict.fromkeys(STATS, 0)

    def evaluate(self, step):
        if self.state.local.count > 0 or self.state.local.pending:
            self.state.local.synchronize()
        return super().evaluate(step)


def check(args, parser):
    if args.scheme == "dense":
        for name in ("merge", "density", "wire", "decay", "density_warmup", "density_schedule",
                     "per_rank"):
            if getattr(args, name) != parser.get_default(name):
                raise SystemExit(f"--{name.replace('_', '-')}: not with --scheme dense, which "
                                 "sends all values as they are")
        args.wire = None        # for the run log
    if args.evaluate and args.evaluate % args.local_steps:
        raise SystemExit(f"--evaluate {args.evaluate}: weights are equal after rounds; give a "
                         f"multiple of --local-steps {args.local_steps}")
    if args.optimizer == "thinwire" or args.accumulate > 1 or args.trace:
        raise SystemExit("--optimizer thinwire, --accumulate, --trace: not with local steps")


def main():
    p = torch_gpt.parser(__doc__)
    p.add_argument("--local-steps", type=int, default=30, metavar="H", help="of a round")
    p.add_argument("--outer-lr", type=float, default=1.0)
    p.add_argument("--outer-momentum", type=float, default=0.0)
    p.add_argument("--nesterov", action="store_true", help="of the outer momentum")
    p.add_argument("--decay", type=float, default=0.95, help="of the residual, in each round")
    p.add_argument("--merge", choices=("mean", "mean_of_senders"),
                   help="what a round applies: the mean over all workers, or over those that sent "
                        "the entry. Without it: mean_of_senders if the exchange is allgather and "
                        "not --delayed, else mean")
    p.add_argument("--delayed", action="store_true",
                   help="the exchange of a round runs while the next one computes")
    p.add_argument("--host", action="store_true", help="outer state and residual on the host")
    p.set_defaults(scheme="topka", density=1 / 64, wire="q2")
    args = p.parse_args()
    check(args, p)
    torch_gpt.train(args, Loop)


if __name__ == "__main__":
    main()
