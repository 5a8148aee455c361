"""Checkpoints of the PyTorch examples: a folder per step, of which `latest` names the newest.

    DIR/latest                  the step, written when all files of that step are complete
    DIR/STEP/common.pt          what all ranks have alike, from rank 0
    DIR/STEP/RANK.pt            what each rank has of its own: residuals, random numbers
"""
import os
import pathlib
import shutil

import torch
import torch.distributed as dist


def save(folder, step, common, own):
    """Replaces the checkpoint by this one. A run that is killed meanwhile keeps the old one.
    Collective."""
    folder, rank = pathlib.Path(folder), dist.get_rank()
    now = folder / str(step)
    now.mkdir(parents=True, exist_ok=True)
    torch.save(own, now / f"{rank}.pt")
    if rank == 0:
        torch.save(common, now / "common.pt")
    dist.barrier()
    if rank > 0:
        return
    (folder / "latest.new").write_text(str(step))
    os.replace(folder / "latest.new", folder / "latest")
    for old in folder.iterdir():
        if old.is_dir() and old != now:
            shutil.rmtree(old)


def load(folder):
    """The newest checkpoint's step, common and own part; None where there is no checkpoint."""
    folder = pathlib.Path(folder)
    if not (folder / "latest").exists():
        return None
    step = int((folder / "latest").read_text())
    parts = (torch.load(folder / str(step) / name, map_location="cpu")
             for name in ("common.pt", f"{dist.get_rank()}.pt"))
    return (step, *parts)
