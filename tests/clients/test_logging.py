"""accelerate, Lightning and transformers with TensorBoard, 2 ranks each: the integrations' figures
arrive there. accelerate: a state that is registered for checkpoints as well is refused.

    make test-clients; test_logging.py NAME runs those whose name contains NAME
"""
import os
import pathlib
import shutil
import sys
import tempfile

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import thinwire
from test_clients import finish, start

STEPS = 20
NAMES = ("payload_sent", "density", "residual_norm", "exchange_seconds")


# ---- what the ranks do

def data():
    inputs = torch.randn(2 * STEPS * 16, 20)
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16)


def with_accelerate(folder):
    from accelerate import Accelerator
    from thinwire.integrations.accelerate import attach
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=folder)
    accelerator.init_trackers("run")
    model = torch.nn.Linear(20, 3)
    model, optimizer, batches = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data())
    state = attach(accelerator, model, density=0.1)
    for step, (batch, targets) in enumerate(batches, 1):
        accelerator.backward(cross_entropy(model(batch), targets))
        optimizer.step()
        optimizer.zero_grad()
        state.log(step)
    accelerator.end_training()
    assert f"2 ranks, {STEPS} steps" in repr(state), state
    accelerator.register_for_checkpointing(state)
    try:
        accelerator.save_state(f"{folder}/checkpoint")
        raise AssertionError("accelerate would have saved the state of rank 0 alone")
    except thinwire.StateError as error:
        assert "register_for_checkpointing()" in str(error), error


def with_lightning(folder):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import TensorBoardLogger
    from thinwire.integrations.lightning import ThinwireCallback

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(20, 3)

        def training_step(self, batch, number):
            return cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, log_every_n_steps=5,
            logger=TensorBoardLogger(folder), callbacks=[ThinwireCallback(density=0.1)],
            enable_progress_bar=False, enable_checkpointing=False).fit(Model(), data())


def with_transformers(folder):
    from transformers import (BertConfig, BertForSequenceClassification, Trainer,
                              TrainingArguments)
    from thinwire.integrations.transformers import ThinwireCallback
    os.environ["TENSORBOARD_LOGGING_DIR"] = folder
    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=16, num_labels=2)
    words = [{"input_ids": one, "labels": int(one[0] > one[1])}
             for one in torch.randint(0, 50, (256, 4))]
    trainer = Trainer(BertForSequenceClassification(config), TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=4, logging_steps=5,
        report_to="tensorboard", save_strategy="no", disable_tqdm=True, use_cpu=True),
        train_dataset=words)
    trainer.add_callback(ThinwireCallback(trainer, density=0.1, warmup_steps=0))
    trainer.train()


CLIENTS = {"accelerate": (with_accelerate, STEPS, ""),
           "lightning": (with_lightning, STEPS // 5, ""),
           "transformers": (with_transformers, STEPS // 5, "train/")}


# ---- what is there then

def scalars(folder):
    """{name: [(step, value)]} of all event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    found = {}
    for path in folder.rglob("events.*"):
        events = EventAccumulator(str(path))
        events.Reload()
        for name in events.Tags()["scalars"]:
            found.setdefault(name, []).extend((one.step, one.value) for one in events.Scalars(name))
    return found


def check(client, folder):
    _, times, before = CLIENTS[client]
    finish(start(__file__, folder, client), folder)
    found = scalars(folder)
    for name in NAMES:
        points = found.get(f"{before}thinwire/{name}", [])
        assert len(points) == times and points[-1][0] >= STEPS - 1, (name, points, sorted(found))
        assert all(value > 0 for _, value in points), (name, points)


def main(only):
    for client in [one for one in CLIENTS if only in one]:
        folder = pathlib.Path(tempfile.mkdtemp())
        try:
            check(client, folder)
        finally:
            shutil.rmtree(folder)
        print("ok", client, flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.manual_seed(1)
        CLIENTS[sys.argv[2]][0](sys.argv[1])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "")
