#!/usr/bin/env python3
"""A GPT on the characters of a text; small size 10,775,040 parameters with 65 characters.

    torchrun --nproc_per_node 8 examples/torch_gpt.py --data tinyshakespeare.txt --steps 3000 \\
        --optimizer thinwire --scheme topka --density 0.01 --density-warmup 600 --lr 2e-3 \\
        --run-log topka.jsonl
    ... --optimizer adamw --scheme dense --lr 1e-3        dense, to compare with

The model is that of Radford et al. (2019): norms before attention and before the inner layer, no
biases except in norms, no weights shared between input and output. The last tenth of the text is
for tests. The text stays on the device. Accuracy is that of the next character.
"""
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_common

SIZES = {"tiny": (96, 3, 3), "small": (384, 6, 6)}  # width, layers, heads
DROPOUT = 0.2


def attention(q, k, v, dropout):
    """Each position attends to itself and those before it. q, k, v [count][heads][length][width]"""
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(later, -math.inf)
    return functional.dropout(scores.softmax(3), dropout) @ v


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.inner = nn.Linear(width, 4 * width, bias=False)
        self.outer = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        heads = self.inputs(self.norms[0](x)).unflatten(2, (3, self.heads, -1))
        y = attention(*heads.permute(2, 0, 3, 1, 4), DROPOUT if self.training else 0.0)
        x = x + self.dropout(self.attended(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.outer(functional.gelu(self.inner(self.norms[1](x)))))


class Gpt(nn.Module):
    def __init__(self, characters, length, width, layers, heads):
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, characters, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for block in self.blocks:  # 2 * layers of these add up in the residual stream
            for projection in (block.attended, block.outer):
                nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, x):
        """Logits [count][length][characters] of what follows x [count][length]."""
        x = self.dropout(self.characters(x) + self.positions.weight[:x.shape[1]])
        return self.decoder(self.norm(self.blocks(x)))


class Text:
    name = "gpt"

    def __init__(self, args, device):
        self.args, self.device, self.data_name = args, device, pathlib.Path(args.data).stem
        text = pathlib.Path(args.data).read_text()
        ids = {character: i for i, character in enumerate(sorted(set(text)))}
        text = torch.tensor([ids[character] for character in text], device=device)
        cut = len(text) * 9 // 10
        self.train, self.test = text[:cut][:args.limit], text[cut:][:args.test_limit]
        self.model = Gpt(len(ids), args.length, *SIZES[args.size])
        whole = args.length * args.batch * torch_common.nranks_of(args)  # characters of a step
        self.steps_per_epoch = len(self.train) // whole
        self.test_samples = max(0, len(self.test) - 1) // args.length
        self.chance = torch.Generator(device)
        self.line = torch.arange(args.length, device=device)

    def batch(self, step, rank):
        self.chance.manual_seed(torch_common.seed_of(self.args, rank, step))
        room = len(self.train) - self.args.length
        starts = torch.randint(room, (self.args.batch, 1), generator=self.chance,
                               device=self.device)
        return self.sample(self.train, starts)

    def sample(self, text, starts):
        """Characters from starts [count][1] on, and those that follow."""
        at = starts + self.line
        return text[at], text[at + 1]

    def loss(self, model, batch):
        logits = model(batch[0]).float().flatten(0, 1)
        labels = batch[1].flatten()
        return (functional.cross_entropy(logits, labels),
                (logits.argmax(1) == labels).float().mean())

    def evaluate(self, model):
        """Over all of the test text, in samples that do not overlap."""
        starts = torch.tensor(list(torch_common.shard(self.test_samples)), device=self.device)
        starts = starts[:, None] * self.args.length
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        for part in starts.split(64):
            loss, accuracy = self.loss(model, self.sample(self.test, part))
            sums += torch.stack([loss, loss * 0 + 1, accuracy, loss * 0 + 1]) * len(part)
        return sums


class Loop(torch_common.Loop):
    """As for all examples, and --graph."""

    def wrap(self, model):
        wrapped = super().wrap(model)
        return self.record(wrapped) if self.args.graph else wrapped

    def record(self, model):
        """The model with its passes as CUDA graphs: one launch instead of hundreds."""
        if self.device.type != "cuda" or isinstance(model, DistributedDataParallel):
            raise SystemExit("--graph: needs a GPU, and a model that is not distributed: local "
                             "steps, or --scheme dense in one process")
        with torch.autocast("cuda", torch.bfloat16, enabled=self.args.amp, cache_enabled=False):
            return torch.cuda.make_graphed_callables(model, self.task.batch(0, 0)[:1])


def parser(description):
    p = torch_common.parser(description, batch=8, optimizer="adamw", lr=1e-3, weight_decay=0.01,
                            warmup=100, whole_model=True)
    p.add_argument("--size", choices=sorted(SIZES), default="small")
    p.add_argument("--length", type=int, default=256, help="characters in a sample")
    p.add_argument("--graph", action="store_true",
                   help="forward and backward passes as CUDA graphs; not with "
                        "DistributedDataParallel")
    return p


def train(args, loop=Loop):
    if args.length < 1:
        raise SystemExit("--length: a sample has 1 character at least")
    if args.graph and args.accumulate > 1:      # a pass overwrites the gradients of the one before
        raise SystemExit("--graph: not with --accumulate; raise --batch")
    torch_common.train(args, Text, "a text file", loop)


def main():
    train(parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
