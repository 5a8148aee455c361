"""States of all ranks: gathered into one dict, in a folder, in torch.distributed.checkpoint.

A state_dict() is that of one rank: residuals differ from rank to rank. Frameworks that save from
rank 0 alone would lose the others'. So there are three forms that hold all of them:

    gather_state_dict()     one dict, for a framework that saves from rank 0
    save(), load()          a file for each rank in the folder of a checkpoint
    RankState               what torch.distributed.checkpoint saves from every rank, under one key

Each can be loaded by another number of ranks. Then rank r takes the states of the ranks r,
r + nranks, r + 2 nranks ... that were saved. A job of one process has no residuals: its note says
so, and nothing is taken from its state.
"""
import contextlib
import copy
import os
import re
from numbers import Integral

import torch
import torch.distributed as dist

from .errors import FileError, MismatchError, ParamError, StateError

_CHUNK = 16 << 20       # bytes that are broadcast at a time
_MOST_RANKS = 4096      # that a state in torch.distributed.checkpoint may have been saved by
_FILE = "thinwire-{}-of-{}.pt"
_ONE_PROCESS = "of one process: nothing was exchanged, there is no residual"
_FILES = re.compile(r"thinwire-(\d+)-of-(\d+)\.pt")


# ---- torch.distributed.checkpoint

class RankState(torch.Tensor):
    """A rank's state as bytes.

    torch.save writes it as a plain tensor. torch.distributed.checkpoint (torch 2.6 or newer) takes
    a plain tensor for the same on all ranks, and keeps rank 0's. To it this one is row `rank` of a
    matrix with a row for each rank. To load, a rank asks for the rows rank, rank + nranks ...;
    rows has those that were there. None: nothing was loaded.
    """

    size = None     # the checkpoint may have another number of rows

    @classmethod
    def of(cls, data, rank, nranks):
        state = data.as_subclass(cls)
        state.rank, state.nranks, state.rows = rank, nranks, None
        return state

    def plain(self):
        return self.as_subclass(torch.Tensor)

    def __reduce_ex__(self, protocol):
        return self.plain().__reduce_ex__(protocol)

    def __repr__(self):
        return repr(self.plain())

    def __deepcopy__(self, memo):
        return RankState.of(copy.deepcopy(self.plain(), memo), self.rank, self.nranks)

    def new_empty(self, *_, **__):
        """async_save() copies tensors so, and would need size()."""
        raise StateError("torch.distributed.checkpoint.async_save() cannot take a state of "
                         "thinwire; use save()")

    def __create_write_items__(self, name, _):
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
        data = TensorWriteData(chunk=self._chunk(self.rank),
                               properties=TensorProperties.create_from_tensor(self.plain()),
                               size=torch.Size((self.nranks, self.nelement())))
        index = MetadataIndex(name, torch.Size((self.rank, 0)))
        return [WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self):
        self.rows = {}
        return [self._chunk(row) for row in range(self.rank, _MOST_RANKS, self.nranks)]

    def _chunk(self, row):
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        return ChunkStorageMetadata(torch.Size((row, 0)), torch.Size((1, self.nelement())))

    def __get_tensor_shard__(self, index):
        """The row to write, or one to read into."""
        if self.rows is None:
            return self.plain().view(1, -1)
        row = index.offset[0]
        if row not in self.rows:
            self.rows[row] = torch.empty_like(self.plain())
        return self.rows[row].view(1, -1)


def note(rank, nranks):
    """What a state says of itself."""
    return (f"the state of rank {rank} of {nranks} alone: save state_dict() on every rank, or "
            "gather_state_dict() once")


# ---- one dict

def device_of(group, device):
    """Where a process group takes tensors of a model on device."""
    backend = str(dist.get_backend(group))
    if "nccl" not in backend or "gloo" in backend:
        return torch.device("cpu")
    return device if device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())


def _lengths(length, group, nranks, device):
    mine = torch.tensor([length], dtype=torch.int64, device=device)
    all_of_them = [torch.zeros_like(mine) for _ in range(nranks)]
    dist.all_gather(all_of_them, mine, group=group)
    return [int(one) for one in all_of_them]


def _broadcast(data, length, root, group, device, keep):
    """The root's bytes on all ranks, or None where they are not kept. In parts: the rest of a rank
    may be short of memory, above all on a GPU."""
    from .process_group import ranks_of
    source = ranks_of(group)[root]
    result = torch.empty(length, dtype=torch.uint8) if keep and data is None else data
    for begin in range(0, length, _CHUNK):
        many = min(_CHUNK, length - begin)
        part = torch.empty(many, dtype=torch.uint8, device=device)
        if data is not None:
            part.copy_(data[begin:begin + many])
        dist.broadcast(part, source, group=group)
        if keep and data is None:
            result[begin:begin + many].copy_(part)
    return result if keep else None


def of_one_process(state):
    """The state of a job of one process, which exchanges nothing. Its bytes are only there to tell
    torch.distributed.checkpoint how long the states of several ranks are."""
    return {**state, "note": _ONE_PROCESS}


def is_of_one_process(saved):
    every = [saved] if isinstance(saved, dict) else saved
    return isinstance(every, (list, tuple)) and len(every) > 0 and all(
        isinstance(one, dict) and one.get("note") == _ONE_PROCESS for one in every)


def gathered(mine, parts):
    """The states of all ranks as one dict. mine: the dict of one of them."""
    return {"version": 2, "note": f"the states of all {len(parts)} ranks", "nranks": len(parts),
            "names": mine["names"], "sizes": mine["sizes"], "states": parts}


def check_root(dst, nranks):
    if dst is not None and not (isinstance(dst, Integral) and 0 <= dst < nranks):
        raise ParamError(f"dst: {dst!r}; accepted is a rank, 0 .. {nranks - 1}, or None: all ranks")


def gather(engine, dst):
    """The states of all ranks as one dict, on all ranks, or on rank dst alone. Collective."""
    nranks = engine.transport.nranks
    check_root(dst, nranks)
    mine = error = None
    try:
        mine = engine.state_dict()
    except Exception as failure:        # the others must not wait for this rank
        error = failure
        if nranks == 1:
            raise
    parts = [mine["state"].plain()] if nranks == 1 else _gather(engine, mine, dst)
    if error is not None:
        raise error
    return None if parts is None else gathered(mine, parts)


def _gather(engine, mine, dst):
    rank, nranks, group = engine.transport.rank, engine.transport.nranks, engine.process_group
    device, keep = device_of(group, engine.device), dst is None or dst == rank
    data = mine["state"].plain() if mine is not None else None
    lengths = _lengths(len(data) if data is not None else -1, group, nranks, device)
    if -1 in lengths:
        if data is None:
            return None         # the caller raises this rank's error
        raise FileError(f"rank {lengths.index(-1)} could not write its state")
    parts = [_broadcast(data if root == rank else None, length, root, group, device, keep)
             for root, length in enumerate(lengths)]
    return parts if keep else None


def expand(saved):
    """A state in any form, as a list of dicts, one for each rank that saved. A dict of one rank of
    several stays a dict."""
    if not isinstance(saved, dict):
        return saved
    if "states" in saved:
        return [_one(saved, rank, state) for rank, state in enumerate(saved["states"])]
    rows = getattr(saved.get("state"), "rows", None)
    if rows is not None:
        return [_one(saved, rank, row) for rank, row in rows.items()]
    return [saved] if saved.get("nranks") == 1 else saved


def _one(saved, rank, state):
    return {**{name: saved.get(name) for name in ("version", "nranks", "names", "sizes")},
            "rank": rank, "note": note(rank, saved.get("nranks")), "state": state}


# ---- files beside a checkpoint

def save(folder, state):
    """Writes this rank's state_dict() to a file in the folder of a checkpoint. Call it on all
    ranks. Replaces the file of an earlier call at once, and removes those of a job with another
    number of ranks that was saved in the same folder."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _FILE.format(state["rank"], state["nranks"]))
    torch.save(state, path + ".new")
    os.replace(path + ".new", path)
    for rank, nranks in _files(folder):
        if nranks != state["nranks"]:
            with contextlib.suppress(FileNotFoundError):        # another rank was faster
                os.remove(os.path.join(folder, _FILE.format(rank, nranks)))


def _files(folder):
    """(rank, number of ranks) of the files in a folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    return sorted(tuple(map(int, match.groups())) for match in map(_FILES.fullmatch, names)
                  if match)


def load(folder, rank, nranks):
    """The states that this rank takes of those in the folder of a checkpoint."""
    found = _files(folder)
    sizes = sorted({of for _, of in found})
    if not found:
        raise FileError(f"{folder}: no state of thinwire is in it ({_FILE.format(0, nranks)} ...); "
                        "was it saved by a job that was not compressed, or killed while saving?")
    if len(sizes) > 1:
        jobs = " and of ".join(map(str, sizes))
        raise MismatchError(f"{folder}: it holds states of jobs of {jobs} ranks; delete those that "
                            "do not belong to the checkpoint")
    states = [torch.load(os.path.join(folder, _FILE.format(*one)), map_location="cpu")
              for one in found if one[0] % nranks == rank or sizes == [1]]
    return states if sizes != [1] else states[0]        # all ranks see that it is of one process
