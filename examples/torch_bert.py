#!/usr/bin/env python3
"""BERT on WikiText-2: masked words and next sentences; base size 133,547,324 parameters.

    torchrun --nproc_per_node 8 examples/torch_bert.py --data wikitext-2 --size base \\
        --scheme oktopk --density 0.01 --whole-model --lr 2e-4 --warmup 20 --steps 200 --amp \\
        --run-log oktopk.jsonl

The folder holds train.txt and test.txt, words between blanks. The model is that of `thinwire
train --model bert` (Devlin et al., 2019; a decoder that shares no weights, 30,522 words, 512
positions). A sample is [CLS] A [SEP] B [SEP]: in half of the samples B follows A in the text, in the
others it is a random piece. The model predicts 15 % of the words: 80 % of them are masked, 10 %
replaced, 10 % unchanged. The text stays on the device, which also makes the samples. Accuracy is
that of the predicted words.
"""
import collections
import pathlib

import torch
from torch import nn

import torch_common

VOCABULARY, POSITIONS = 30522, 512
SPECIAL = UNKNOWN, FIRST, BREAK, MASK = range(4)
SIZES = {"tiny": (128, 2, 2, 512), "base": (768, 12, 12, 3072)}  # width, layers, heads, inner


class Bert(nn.Module):
    def __init__(self, width, layers, heads, inner):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(width, heads, inner, 0.1, "gelu", batch_first=True)
            for _ in range(layers)])
        self.pool = nn.Linear(width, width)
        self.sentence = nn.Linear(width, 2)
        self.transform = nn.Linear(width, width)
        self.word_norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, VOCABULARY)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.MultiheadAttention):
                nn.init.normal_(module.in_proj_weight, std=0.02)

    def forward(self, tokens, segments, masked):
        """Logits of the words at the indices masked of all tokens, and of the sentences."""
        line = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.positions(line) + self.segments(segments))
        for layer in self.layers:
            x = layer(x)
        guesses = self.transform(x.flatten(0, 1)[masked])
        guesses = self.word_norm(nn.functional.gelu(guesses))
        return self.decoder(guesses), self.sentence(torch.tanh(self.pool(x[:, 0])))


def read_words(path, limit):
    return path.read_text().replace("\n", " <eos> ").split()[:limit]


class WikiText:
    name, data_name = "bert", "wikitext-2"

    def __init__(self, args, device):
        self.args, self.device = args, device
        self.model = Bert(*SIZES[args.size])
        folder = pathlib.Path(args.data)
        train = read_words(folder / "train.txt", args.limit)
        common = collections.Counter(train).most_common(VOCABULARY - len(SPECIAL))
        ids = {word: i for i, (word, _) in enumerate(common, len(SPECIAL))}
        self.train = self.numbers(train, ids)
        self.test = self.numbers(read_words(folder / "test.txt", args.test_limit), ids)
        self.half = (args.length - 3) // 2  # words of A; B has as many
        whole = 2 * self.half * args.batch * torch_common.nranks_of(args)  # words of a step
        self.steps_per_epoch = len(train) // whole
        self.test_samples = max(0, len(self.test) // (2 * self.half) - 1)
        self.chance = torch.Generator(device)

    def numbers(self, words, ids):
        return torch.tensor([ids.get(word, UNKNOWN) for word in words], device=self.device)

    def sample(self, text, starts, chance):
        """Samples whose A begins at starts [count] of the text: tokens, segments, indices of the
        masked words, their labels, and whether B follows."""
        count, half, device = len(starts), self.half, self.device
        def random(*shape):
            return torch.rand(*shape, generator=chance, device=device)
        line = torch.arange(half, device=device)
        follows = random(count) < 0.5
        elsewhere = (random(count) * (len(text) - half)).long()
        second = torch.where(follows, starts + half, elsewhere)
        def column(token):
            return torch.full((count, 1), token, device=device)
        tokens = torch.cat([column(FIRST), text[starts[:, None] + line], column(BREAK),
                            text[second[:, None] + line], column(BREAK)], 1)
        at = torch.arange(tokens.shape[1], device=device)
        segments = (at >= half + 2).long().expand_as(tokens)
        # The same number in every sample, so that shapes are fixed.
        hidden = random(count, 2 * half).topk(max(1, round(0.15 * 2 * half)), 1).indices
        hidden = hidden + torch.where(hidden < half, 1, 2)  # past [CLS], past the first [SEP]
        labels = tokens.gather(1, hidden)
        dice = random(*hidden.shape)
        other = (random(*hidden.shape) * (VOCABULARY - len(SPECIAL))).long() + len(SPECIAL)
        shown = torch.where(dice < 0.8, MASK, torch.where(dice < 0.9, other, labels))
        tokens = tokens.scatter(1, hidden, shown)
        masked = hidden + torch.arange(count, device=device)[:, None] * tokens.shape[1]
        return tokens, segments, masked.flatten(), labels.flatten(), follows.long()

    def batch(self, step, rank):
        self.chance.manual_seed(torch_common.seed_of(self.args, rank, step))
        room = len(self.train) - 2 * self.half
        starts = torch.randint(room, (self.args.batch,), generator=self.chance, device=self.device)
        return self.sample(self.train, starts, self.chance)

    def loss(self, model, batch):
        tokens, segments, masked, labels, follows = batch
        words, sentences = model(tokens, segments, masked)
        loss = (nn.functional.cross_entropy(words.float(), labels)
                + nn.functional.cross_entropy(sentences.float(), follows))
        return loss, (words.argmax(1) == labels).float().mean()

    def evaluate(self, model):
        """The same samples each time, for any number of ranks; they cover the test text."""
        parts = (torch.arange(self.test_samples, device=self.device) * 2 * self.half).split(32)
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        for number in torch_common.shard(len(parts)):
            part = parts[number]
            self.chance.manual_seed(number)
            loss, accuracy = self.loss(model, self.sample(self.test, part, self.chance))
            sums += torch.stack([loss, loss * 0 + 1, accuracy, loss * 0 + 1]) * len(part)
        return sums


def main():
    parser = torch_common.parser(__doc__, batch=8, optimizer="adamw", lr=1e-4, weight_decay=0.01,
                                 warmup=50)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--length", type=int, default=128, help="tokens in a sample")
    args = parser.parse_args()
    if args.length < 5:
        parser.error("--length: a sample has 5 tokens at least")
    torch_common.train(args, WikiText, "a folder with train.txt and test.txt")


if __name__ == "__main__":
    main()
