#!/usr/bin/env python3
"""VGG-16 or ResNet-20 on CIFAR-10, data-parallel, dense or sparse.

    torchrun --nproc_per_node 8 examples/torch_cifar10.py --data DIR --scheme oktopk \\
        --density 0.02 --whole-model --momentum 0 --lr 0.4 --weight-decay 2.5e-3 \\
        --run-log oktopk.jsonl

torch_common.py says what the torchrun of Debian 12 and of Debian 13 needs.

DIR holds the binary batches (data_batch_1.bin ... test_batch.bin), or the same as six JPEG sheets
of tiles (data_batch_1.jpg ... test_batch.jpg, labels.bin), which torchvision or Pillow decodes. All
images stay on the device as bytes; the device crops, flips and scales them.
"""
import pathlib

import numpy
import torch
from torch import nn

import torch_common

FILES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
SIDE, MARGIN = 32, 4
MEAN, DEVIATION = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # of the training images' channels
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)  # 0: pool


def vgg16():
    """As `thinwire train --model vgg16`, with biases before batch norm: 14,728,266 parameters."""
    layers, inputs = [], 3
    for width in VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width),
                   nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters, which skips pixels and adds zeros."""

    def __init__(self, inputs, width):
        super().__init__()
        self.stride = width // inputs
        self.first = nn.Conv2d(inputs, width, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x):
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y))
        x = x[:, :, ::self.stride, ::self.stride]
        return (y + nn.functional.pad(x, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))).relu()


def resnet20():
    """As `thinwire train --model resnet20` (He et al., 2016): 269,722 parameters."""
    layers, inputs = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for width in (16, 16, 16, 32, 32, 32, 64, 64, 64):
        layers.append(Block(inputs, width))
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


MODELS = {"vgg16": vgg16, "resnet20": resnet20}


def decode_sheet(path):
    """A JPEG file as an array [rows][columns][3], decoded by torchvision or Pillow."""
    try:
        from torchvision.io import decode_jpeg, read_file

        return decode_jpeg(read_file(str(path))).permute(1, 2, 0).numpy()
    except (ImportError, RuntimeError):
        from PIL import Image

        return numpy.asarray(Image.open(path))


def read_images(folder):
    """(images [n][32][32][3], labels [n]) as bytes: of five files for training, one for tests."""
    if (folder / "labels.bin").exists():
        sheets = numpy.stack([decode_sheet(folder / f"{name}.jpg") for name in FILES])
        tiles = sheets.reshape(len(FILES), sheets.shape[1] // SIDE, SIDE, -1, SIDE, 3)
        images = tiles.swapaxes(2, 3).reshape(-1, SIDE, SIDE, 3)
        return images, numpy.fromfile(folder / "labels.bin", numpy.uint8)
    records = numpy.concatenate([numpy.fromfile(folder / f"{name}.bin", numpy.uint8)
                                 for name in FILES]).reshape(-1, 1 + 3 * SIDE * SIDE)
    images = records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return numpy.ascontiguousarray(images), records[:, 0].copy()


class Cifar10:
    data_name = "cifar-10"

    def __init__(self, args, device):
        self.args, self.name, self.device = args, args.model, device
        self.nranks = torch_common.nranks_of(args)
        self.model = MODELS[args.model]().to(memory_format=torch.channels_last)
        images, labels = (torch.from_numpy(a) for a in read_images(pathlib.Path(args.data)))
        ntest = len(labels) // len(FILES)
        train, test = labels[:-ntest][:args.limit], labels[-ntest:][:args.test_limit]
        around = (0, 0, MARGIN, MARGIN, MARGIN, MARGIN)
        padded = nn.functional.pad(images[:len(train)], around)
        mine = list(torch_common.shard(len(test)))
        self.train = padded.to(device), train.to(device).long()
        self.test = images[-ntest:][mine].to(device), test[mine].to(device).long()
        self.test_samples = len(test)
        self.steps_per_epoch = len(train) // (args.batch * self.nranks)
        self.epoch, self.order = None, None
        self.chance = torch.Generator(device)
        self.mean = torch.tensor(MEAN, device=device)
        self.scale = 1 / torch.tensor(DEVIATION, device=device)

    def scaled(self, images):
        """[count][3][32][32] with channels last in memory, from bytes."""
        return ((images - self.mean) * self.scale).permute(0, 3, 1, 2)

    def random(self, below, count):
        return torch.randint(below, (count, 1), generator=self.chance, device=self.device)

    def batch(self, step, rank):
        epoch, at = divmod(step, self.steps_per_epoch)
        if epoch != self.epoch:
            shuffle = torch.Generator().manual_seed(torch_common.seed_of(self.args, 999, epoch))
            order = torch.randperm(len(self.train[1]), generator=shuffle)  # alike on all ranks
            self.epoch, self.order = epoch, order.to(self.device)
        self.chance.manual_seed(torch_common.seed_of(self.args, rank, step))
        mine = self.order[rank::self.nranks][at * self.args.batch:(at + 1) * self.args.batch]
        line = torch.arange(SIDE, device=self.device)[None]
        rows = self.random(2 * MARGIN + 1, len(mine)) + line
        columns = torch.where(self.random(2, len(mine)) == 1, SIDE - 1 - line, line)
        columns = columns + self.random(2 * MARGIN + 1, len(mine))
        crops = self.train[0][mine[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self.scaled(crops), self.train[1][mine]

    def loss(self, model, batch):
        images, labels = batch
        logits = model(images).float()
        return (nn.functional.cross_entropy(logits, labels),
                (logits.argmax(1) == labels).float().mean())

    def evaluate(self, model):
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        for images, labels in zip(*(part.split(1250) for part in self.test)):
            logits = model(self.scaled(images)).float()
            loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
            correct, count = (logits.argmax(1) == labels).sum(), loss.new_tensor(len(labels))
            sums += torch.stack([loss, count, correct, count])
        return sums


def main():
    parser = torch_common.parser(__doc__, batch=128, epochs=40, warmup=240)
    parser.add_argument("--model", choices=sorted(MODELS), default="vgg16")
    args = parser.parse_args()
    torch_common.train(args, Cifar10, "a folder with data_batch_1.bin ... data_batch_5.bin and "
                       "test_batch.bin, or the six as .jpg with labels.bin")


if __name__ == "__main__":
    main()
