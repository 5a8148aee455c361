"""Lightning: the callback is all that Thinwire needs.

    python3 examples/torch_lightning.py FOLDER [--resume CHECKPOINT]
"""
import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from thinwire.integrations.lightning import ThinwireCallback


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.Tanh(),
                                          torch.nn.Linear(200, 10))

    def training_step(self, batch, number):
        self.print(f"step {self.global_step}", flush=True)
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--resume", metavar="CHECKPOINT")
args = parser.parse_args()
seed_everything(1)
inputs = torch.randn(1280, 20)
data = DataLoader(TensorDataset(inputs, (inputs @ torch.randn(20, 10)).argmax(1)), batch_size=32)
saving = ModelCheckpoint(args.folder, "{step}", save_top_k=-1)     # at the end of each epoch
trainer = Trainer(accelerator="auto", devices=2, strategy="ddp", max_epochs=3, log_every_n_steps=20,
                  callbacks=[saving, ThinwireCallback(density=0.05)], enable_progress_bar=False,
                  default_root_dir=args.folder)
trainer.fit(Model(), data, ckpt_path=args.resume)
