"""States as dicts, for torch.save: the library writes and reads files, a dict holds their bytes."""
import ctypes
import os
import tempfile

import torch

from .errors import MismatchError

_FIELDS = {"version", "rank", "nranks", "names", "sizes", "state"}


def _folder():
    """Better a place that never sees a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(dir=memory)


def bytes_of(group):
    """The group's state, as a tensor."""
    with _folder() as folder:
        path = os.path.join(folder, "state")
        group.save(path)
        with open(path, "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def load(group, dicts):
    """The group goes on from these. Collective."""
    with _folder() as folder:
        paths = [os.path.join(folder, str(number)) for number in range(len(dicts))]
        for path, one in zip(paths, dicts):
            state = one["state"].cpu().contiguous()
            with open(path, "wb") as file:
                file.write(ctypes.string_at(state.data_ptr(), state.numel()))
        group.load(paths)


def own_of(saved, rank, nranks, sizes):
    """What a rank takes of one dict, which is its own, or of the list of all ranks' dicts. sizes
    are those of the model's parameters, by name."""
    every = [saved] if isinstance(saved, dict) else saved
    if not (isinstance(every, (list, tuple)) and all(map(_is_state, every))):
        raise MismatchError("this is not what state_dict() of thinwire returned, nor a list of "
                            "such")
    for one in every:
        _compare(dict(zip(one["names"], one["sizes"])), sizes)
    if isinstance(saved, dict):
        return every
    return [one for one in every if one["rank"] % nranks == rank]


def _is_state(one):
    return isinstance(one, dict) and one.keys() == _FIELDS and one["version"] == 1


def _compare(then, now):
    for name in {**now, **then}:
        if then.get(name) != now.get(name):
            raise MismatchError(f"the saved state is of another model: parameter '{name}' has "
                                f"{then.get(name, 'no')} elements there, {now.get(name, 'no')} "
                                "here")
    if list(then) != list(now):
        raise MismatchError("the saved state is of a model with the same parameters in another "
                            "order")
