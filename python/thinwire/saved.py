"""States as dicts, for torch.save. The library writes and reads files; a dict holds their bytes."""
import contextlib
import ctypes
import os
import re
import tempfile

import torch

from . import states
from .errors import FileError, MismatchError

_FIELDS = {1: {"version", "rank", "nranks", "names", "sizes", "state"}}
_FIELDS[2] = _FIELDS[1] | {"note"}
_MEMORY = "/dev/shm"        # files in it never touch a disk


def _parents(size, nranks):
    """Folders to try for temporary files of size bytes on each rank. In containers all ranks and
    their data loaders often share a /dev/shm of 64 MB, and programs that find it full may die. So
    it is used only if room is left for one rank more."""
    with contextlib.suppress(OSError):
        status = os.statvfs(_MEMORY)
        if status.f_bavail * status.f_frsize >= (nranks + 1) * size:
            yield _MEMORY
    yield None      # the default folder for temporary files


@contextlib.contextmanager
def _folder(size, nranks, write):
    """A temporary folder in the first parent in which write(folder) succeeds."""
    for parent in _parents(size, nranks):
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=parent))
                write(folder)
            except (OSError, FileError) as error:
                failure = error
                continue
            yield folder
            return
    raise FileError(f"no room for a state of {size} bytes: {failure}; TMPDIR names another folder "
                    "for temporary files")


def bytes_of(group):
    """The group's state, as a tensor."""
    memory = group.memory()
    with _folder(memory["residual"] + memory["moments"], group.transport.nranks,
                 lambda folder: group.save(os.path.join(folder, "state"))) as folder:
        path = os.path.join(folder, "state")
        data = bytearray(os.path.getsize(path))
        with open(path, "rb") as file:
            file.readinto(data)
        return torch.frombuffer(data, dtype=torch.uint8)


def view(tensor):
    """A tensor's bytes, not copied. Keep the tensor as long as the view."""
    return (ctypes.c_char * tensor.nelement()).from_address(tensor.data_ptr())


@contextlib.contextmanager
def files_of(dicts, nranks):
    """Writes states to temporary files and returns their paths; removes them at the end."""
    states = [one["state"].cpu().contiguous() for one in dicts]

    def write(folder):
        for number, state in enumerate(states):
            with open(os.path.join(folder, str(number)), "wb") as file:
                file.write(view(state))
    with _folder(sum(map(len, states)), nranks, write) as folder:
        yield [os.path.join(folder, str(number)) for number in range(len(states))]


def own_of(saved, rank, nranks, sizes):
    """The dicts that this rank loads: one dict is its own; of the list of all ranks' dicts, or of
    a gathered state, it takes every nranks-th. sizes: elements of the model's parameters, by
    name."""
    if states.is_of_one_process(saved):
        return []
    saved = states.expand(saved)
    every = [saved] if isinstance(saved, dict) else saved
    if not (isinstance(every, (list, tuple)) and all(map(_is_state, every))):
        raise MismatchError("expected a dict that thinwire's state_dict() or gather_state_dict() "
                            "returned, or a list of the dicts of all ranks")
    for one in every:
        _compare(dict(zip(one["names"], one["sizes"])), sizes)
    if isinstance(saved, dict):
        return every
    return [one for one in every if one["rank"] % nranks == rank]


def _is_state(one):
    return isinstance(one, dict) and one.keys() == _FIELDS.get(one.get("version"))


def _compare(then, now):
    for name in {**now, **then}:
        if then.get(name) != now.get(name):
            raise MismatchError(f"the saved state is of another model: parameter '{name}' has "
                                f"{then.get(name, 'no')} elements in it, {now.get(name, 'no')} "
                                "in this model")
    if list(then) != list(now):
        raise MismatchError("the saved state is of a model with the same parameters in another "
                            "order")


def missing_text(missing):
    """What tw_group_load_some has left out."""
    ranks = ", ".join(map(str, missing.ranks[:min(missing.count, len(missing.ranks))]))
    more = missing.count - len(missing.ranks)
    return (f"the state of rank {ranks}{f' and {more} more' if more > 0 else ''} is missing: of "
            f"{missing.saved} residuals that were saved together, {missing.count} "
            f"({missing.count / missing.saved:.0%}) {'is' if missing.count == 1 else 'are'} lost")


def is_missing(error):
    """Whether the library was given no state on any rank."""
    return "no rank names a state" in str(error)


def explain(error):
    """The library's error, in the words of state_dict(). Every rank gets the same."""
    match = re.search(r"the state of saved rank (\d+) is taken by (\d+) ranks", str(error))
    if match is None:
        return error
    rank, many = match.groups()
    what = (f"the state of rank {rank} is given to {many} ranks" if int(many) > 1 else
            f"the state of rank {rank} is missing")
    lost = "" if int(many) > 1 else ". If it was lost with its rank, pass allow_missing=True"
    return type(error)(f"{what}: every rank has a state of its own, and one rank's is not enough. "
                       "Save state_dict() on every rank and give each rank its own, or save "
                       f"gather_state_dict() once and give it to all ranks{lost}")
