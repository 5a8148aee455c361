#!/usr/bin/env python3
"""The LSTM of the papers on CMU AN4 speech with CTC, 27,569,568 parameters, dense or sparse.

    examples/prepare_an4.py an4-folder features.npz
    torchrun --nproc_per_node 8 examples/torch_an4.py --data features.npz --scheme oktopk \\
        --density 0.02 --density-warmup 64 --warmup-density 0.1 --whole-model \\
        --momentum-correction --lr 6e-4 --masks 2 --epochs 60 --run-log oktopk.jsonl

Deep Speech 2 (Amodei et al., 2016): two convolutions over frequency and time, five LSTM layers of
800 that run forward only, a look-ahead over 20 frames, 29 letters. Utterances of similar length
form a batch; the first epoch runs from short to long. The logged accuracy is one minus the word
error rate of the most likely letters, without a language model. The model soon overfits to 948
utterances: --masks hides parts of them.
"""
import numpy
import torch
from torch import nn

import torch_common
from prepare_an4 import ALPHABET

FREQUENCIES, WIDTH, LAYERS, AHEAD = 161, 800, 5, 20


class Recurrent(nn.Module):
    """Batch norm over all frames (not in the first layer), then an LSTM. x [time][count][inputs]"""

    def __init__(self, inputs, width, norm=True):
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs) if norm else None
        self.lstm = nn.LSTM(inputs, width)

    def forward(self, x):
        if self.norm is not None:
            x = self.norm(x.flatten(0, 1)).view_as(x)
        return self.lstm(x)[0]


class DeepSpeech(nn.Module):
    def __init__(self, width=WIDTH, layers=LAYERS):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
        inputs = 32 * 41  # 161 frequencies, halved twice
        self.recurrent = nn.Sequential(
            *[Recurrent(inputs if i == 0 else width, width, norm=i > 0) for i in range(layers)])
        self.ahead = nn.Conv1d(width, width, AHEAD + 1, groups=width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.letters = nn.Linear(width, len(ALPHABET), bias=False)

    def forward(self, x):
        """Logits [time / 2][count][letters] of x [count][time][frequencies]."""
        x = self.convolutions(x.transpose(1, 2).unsqueeze(1))
        x = self.recurrent(x.flatten(1, 2).permute(2, 0, 1))
        x = self.ahead(nn.functional.pad(x.permute(1, 2, 0), (0, AHEAD)))
        x = nn.functional.hardtanh(x, 0, 20).permute(2, 0, 1)
        return self.letters(self.norm(x.flatten(0, 1)).view_as(x))


class Utterances:
    """One part of the data, on the device: frames and labels one after the other, and counts."""

    def __init__(self, arrays, part, limit, device):
        self.counts = arrays[f"{part}_frame_counts"][:limit].astype(int)
        self.label_counts = arrays[f"{part}_label_counts"][:limit].astype(int)
        self.starts = numpy.concatenate([[0], self.counts.cumsum()])
        self.label_starts = numpy.concatenate([[0], self.label_counts.cumsum()])
        self.frames = torch.from_numpy(arrays[f"{part}_frames"][:self.starts[-1]]).to(device)
        self.labels = torch.from_numpy(arrays[f"{part}_labels"][:self.label_starts[-1]]).long()
        self.device, self.scale = device, float(arrays["scale"])

    def text(self, i):
        return self.labels[self.label_starts[i]:self.label_starts[i + 1]]

    def batch(self, chosen):
        """Features padded with zeros, lengths after the convolutions, labels and their lengths."""
        longest = int(self.counts[chosen].max())
        x = torch.zeros(len(chosen), longest, FREQUENCIES, device=self.device)
        for row, i in enumerate(chosen):
            x[row, :self.counts[i]] = self.frames[self.starts[i]:self.starts[i + 1]] * self.scale
        return (x, tuple(int(c + 1) // 2 for c in self.counts[chosen]),
                torch.cat([self.text(i) for i in chosen]).to(self.device),
                tuple(int(c) for c in self.label_counts[chosen]))


def hide(x, counts, masks, random):
    """Zeroes stretches of each utterance: up to a tenth of its time, a sixth of the frequencies
    (SpecAugment, Park et al., 2019)."""
    for row, frames in zip(x, counts):
        for _ in range(masks):
            for axis, size, most in ((row, frames, frames // 10),
                                     (row.t(), FREQUENCIES, FREQUENCIES // 6)):
                width = random.integers(most + 1)
                start = random.integers(size - width + 1)
                axis[start:start + width] = 0.0


def decode(best):
    """Words of the most likely letters of each frame: repeats merged, blanks left out."""
    kept = [c for c, before in zip(best, [0] + best[:-1]) if c != before and c != 0]
    return "".join(ALPHABET[c] for c in kept).split()


def distance(a, b):
    """Insertions, deletions and replacements that turn list a into list b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


class An4:
    name, data_name = "lstm", "an4"

    def __init__(self, args, device):
        self.args, self.device = args, device
        self.nranks = torch_common.nranks_of(args)
        self.model = DeepSpeech(args.width, args.layers)
        arrays = numpy.load(args.data)
        self.train = Utterances(arrays, "train", args.limit, device)
        self.test = Utterances(arrays, "test", args.test_limit, device)
        self.test_samples = len(self.test.counts)
        self.by_length = numpy.argsort(self.train.counts, kind="stable")
        self.steps_per_epoch = len(self.by_length) // (args.batch * self.nranks)

    def batch(self, step, rank):
        whole, (epoch, at) = self.args.batch * self.nranks, divmod(step, self.steps_per_epoch)
        shuffle = numpy.random.default_rng([self.args.seed, epoch])  # alike on all ranks
        offset = int(shuffle.integers(len(self.by_length) % whole + 1))
        number = at if epoch == 0 else shuffle.permutation(self.steps_per_epoch)[at]
        chunk = self.by_length[offset + number * whole:][:whole]
        chosen = chunk[rank::self.nranks]
        batch = self.train.batch(chosen)
        if self.args.masks > 0:
            random = numpy.random.default_rng([self.args.seed, rank, step])
            hide(batch[0], self.train.counts[chosen], self.args.masks, random)
        return batch

    def ctc(self, model, batch):
        """Logits, and the sum of the losses of the utterances."""
        x, lengths, labels, label_lengths = batch
        logits = model(x).float()
        return logits, nn.functional.ctc_loss(logits.log_softmax(2), labels, lengths, label_lengths,
                                              reduction="sum", zero_infinity=True)

    def loss(self, model, batch):
        logits, loss = self.ctc(model, batch)
        unknown = torch.full_like(loss, float("nan"))  # words are compared in tests only
        return loss / len(batch[1]), unknown

    def evaluate(self, model):
        """Loss, utterances; words less the errors, words."""
        sums = torch.zeros(4, dtype=torch.float64)
        mine = numpy.array(torch_common.shard(len(self.test.counts)))
        for chosen in numpy.array_split(mine, max(1, len(mine) // 16)):
            batch = self.test.batch(chosen)
            logits, loss = self.ctc(model, batch)
            for i, length, best in zip(chosen, batch[1], logits.argmax(2).t().tolist()):
                words = "".join(ALPHABET[c] for c in self.test.text(i)).split()
                right = len(words) - distance(decode(best[:length]), words)
                sums += torch.tensor([0.0, 1.0, right, len(words)])
            sums[0] += loss.double().cpu()
        return sums


def main():
    parser = torch_common.parser(__doc__, batch=8, epochs=100, lr=3e-4, warmup=60, clip=400.0,
                                 weight_decay=0.0)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the LSTM's layers")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--masks", type=int, default=0, metavar="COUNT",
                        help="stretches of time and of frequency to hide in each utterance")
    args = parser.parse_args()
    if args.masks < 0:
        parser.error("--masks: accepted is 0 or more")
    torch_common.train(args, An4, "the file that examples/prepare_an4.py makes", same_shapes=False)


if __name__ == "__main__":
    main()
