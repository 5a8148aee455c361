"""The Trainer of transformers: the callback is all that Thinwire needs.

    torchrun --nproc_per_node 2 examples/torch_transformers.py FOLDER [--resume]
"""
import argparse

import torch
from transformers import (BertConfig, BertForSequenceClassification, Trainer, TrainingArguments,
                          set_seed)

from thinwire.integrations.transformers import ThinwireCallback

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
args = parser.parse_args()

set_seed(1)
config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=64, num_labels=2)
words = torch.randint(0, 100, (2048, 16))
data = [{"input_ids": one, "labels": int(one[0] > one[1])} for one in words]
options = TrainingArguments(args.folder, max_steps=60, per_device_train_batch_size=16,
                            learning_rate=1e-3, save_steps=20, logging_steps=20,
                            report_to="none", disable_tqdm=True,
                            use_cpu=not torch.cuda.is_available())
trainer = Trainer(BertForSequenceClassification(config), options, train_dataset=data)
trainer.add_callback(ThinwireCallback(trainer, density=0.05, steps=60))
trainer.train(resume_from_checkpoint=args.resume)
