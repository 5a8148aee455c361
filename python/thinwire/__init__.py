"""Thinwire: sparse allreduce. Send the few gradient values that matter, keep the rest.

    optimizer = thinwire.AdamW(model, lr=2e-3, steps=10000)          # in place of torch's, or
    thinwire.compress(ddp_model, scheme="oktopk", density=0.01)      # a hook beside any optimizer

thinwire.trace() writes a timeline of steps. docs/python.md is the manual. Group works without
torch. The rest imports torch when it is used.
thinwire.integrations.accelerate, .lightning and .transformers must be imported by name.
"""
from typing import TYPE_CHECKING

from .errors import (  # noqa: A004 - "as" says to type checkers that they are public
    DamagedError as DamagedError,
    DensityError as DensityError,
    DeviceError as DeviceError,
    Error as Error,
    ExcludedError as ExcludedError,
    FileError as FileError,
    IndexError as IndexError,
    KError as KError,
    MemoryError as MemoryError,
    MismatchError as MismatchError,
    NameError as NameError,
    NullError as NullError,
    NumberError as NumberError,
    ParamError as ParamError,
    ProtocolError as ProtocolError,
    QuorumError as QuorumError,
    SizeError as SizeError,
    StateError as StateError,
    TimeoutError as TimeoutError,
    TransportError as TransportError,
)
from .group import Group as Group, alone as alone, tcp as tcp, threads as threads
from .library import schemes as schemes, version as version

if TYPE_CHECKING:       # __getattr__ loads these when they are used
    from .ddp import compress as compress
    from .local import LocalSteps as LocalSteps
    from .optim import AdamW as AdamW, SGD as SGD
    from .optimizer import (
        Compression as Compression,
        DistributedOptimizer as DistributedOptimizer,
    )
    from .parameters import broadcast_parameters as broadcast_parameters
    from .timeline import trace as trace

__version__ = version()
_LAZY = {"AdamW": "optim", "SGD": "optim", "compress": "ddp", "Compression": "optimizer",
         "DistributedOptimizer": "optimizer", "LocalSteps": "local",
         "broadcast_parameters": "parameters", "trace": "timeline"}
# Without the error classes: some share their names with Python's.
__all__ = ["Error", "Group", "alone", "tcp", "threads", "schemes", "version", *_LAZY]


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    from importlib import import_module
    return getattr(import_module("." + _LAZY[name], __name__), name)


def __dir__():
    return sorted({*globals(), *_LAZY})
