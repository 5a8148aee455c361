"""Hugging Face Accelerate: `attach` after `prepare` is all that Thinwire needs.

    accelerate launch --cpu --num_processes 2 examples/torch_accelerate.py FOLDER [--resume STEP]
"""
import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from thinwire.integrations.accelerate import attach

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--resume", type=int, default=0, metavar="STEP")
args = parser.parse_args()

accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.Tanh(), torch.nn.Linear(200, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
inputs = torch.randn(3840, 20)
data = DataLoader(TensorDataset(inputs, (inputs @ torch.randn(20, 10)).argmax(1)), batch_size=32)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
state = attach(accelerator, model, density=0.05)

if args.resume:
    accelerator.load_state(f"{args.folder}/{args.resume}")
batches = accelerator.skip_first_batches(data, args.resume)
for step, (batch, targets) in enumerate(batches, args.resume + 1):
    loss = torch.nn.functional.cross_entropy(model(batch), targets)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step}", flush=True)
    if step % 20 == 0:
        state.log(step)
        accelerator.save_state(f"{args.folder}/{step}")
        accelerator.print(f"loss {loss:.3f}; {state.summary()}")
