"""Thinwire: sparse allreduce. Send the few gradient values that matter, keep the rest.

    optimizer = thinwire.AdamW(model, lr=2e-3, steps=10000)          # in place of torch's, or
    thinwire.compress(ddp_model, scheme="oktopk", density=0.01)      # a hook beside any optimizer

docs/python.md is the manual. Group works without torch. The rest imports torch when it is used.
thinwire.integrations has accelerate, lightning and transformers.
"""
from . import errors as _errors
from .errors import Error
from .group import Group, alone, threads
from .library import schemes, version

globals().update({kind.__name__: kind for kind in _errors.BY_CODE.values()})
__version__ = version()
_LAZY = {"AdamW": "optim", "SGD": "optim", "compress": "ddp", "Compression": "optimizer",
         "DistributedOptimizer": "optimizer", "broadcast_parameters": "parameters"}
# Without the error classes: some share their names with Python's.
__all__ = ["Error", "Group", "alone", "threads", "schemes", "version", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    from importlib import import_module
    return getattr(import_module("." + _LAZY[name], __name__), name)


def __dir__():
    return sorted({*globals(), *_LAZY})
