"""The C library through ctypes: structures and prototypes of thinwire.h, and nothing else.

Loads the library that THINWIRE_LIBRARY names, or the one that was built with the package, or else
that of the system.
"""
import ctypes
import os
import re
from ctypes import (POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)
from typing import Dict

from . import errors

F32, F16, BF16 = 0, 1, 2
CPU, CUDA = 0, 1
ALL = -1
LARGEST = 2**31 - 1
SONAME = "libthinwire.so.0.1"       # of libraries whose structures are those below


class SelectParams(Structure):
    _fields_ = [("method", c_char_p), ("k", c_int64), ("density", c_double), ("type", c_int),
                ("feedback", c_int), ("threads", c_int), ("seed", c_uint64), ("device", c_int),
                ("ordinal", c_int), ("stream", c_void_p), ("clip_norm", c_float),
                ("momentum", c_float), ("before", c_int), ("beta1", c_double), ("beta2", c_double),
                ("eps", c_double), ("rate", c_double), ("warmup", c_int), ("warmup_steps", c_int32),
                ("warmup_density", c_double),
                ("reuse_period", c_int32), ("reuse_low", c_float), ("reuse_high", c_float),
                ("reuse_nudge", c_float), ("gaussian_rounds", c_int32), ("dgc_sample", c_double),
                ("decay", c_float), ("reserved", c_uint32 * 7)]


class GroupParams(Structure):
    _fields_ = [("scheme", c_char_p), ("exchange", c_char_p), ("wire", c_char_p),
                ("select", SelectParams), ("result", c_int), ("global_", c_int), ("count", c_int),
                ("checksum", c_int), ("timeout", c_double), ("bucket", c_int64),
                ("membership", c_int), ("reserved", c_uint32 * 7)]


class Memory(Structure):
    _fields_ = [("residual", c_size_t), ("moments", c_size_t), ("undo", c_size_t),
                ("workspace", c_size_t), ("total", c_size_t), ("reserved", c_size_t * 4)]


class Traffic(Structure):
    _fields_ = [("payload_sent", c_int64), ("payload_received", c_int64),
                ("control_sent", c_int64), ("control_received", c_int64),
                ("messages_sent", c_int64), ("reserved", c_int64 * 3)]


class StepInfo(Structure):
    _fields_ = [("step", c_int64), ("k", c_int64), ("selected", c_int64), ("applied", c_int64),
                ("exchange", c_char_p), ("wire", c_char_p), ("tensors", c_int),
                ("traffic", Traffic),
                ("began", c_double), ("select_seconds", c_double), ("agree_seconds", c_double),
                ("exchange_seconds", c_double), ("apply_seconds", c_double),
                ("decayed", c_double), ("reserved", c_int64 * 3)]


class LostRank(Structure):
    _fields_ = [("rank", c_int), ("heir", c_int), ("norm", c_double), ("step", c_int64),
                ("reserved", c_int64 * 2)]


class Members(Structure):
    _fields_ = [("version", c_int64), ("rank", c_int), ("nranks", c_int), ("rank_before", c_int),
                ("nranks_before", c_int), ("before", POINTER(c_int)), ("lost", POINTER(LostRank)),
                ("nlost", c_int), ("completed", c_int), ("step", c_int64), ("seconds", c_double),
                ("reserved", c_int64 * 8)]


class Missing(Structure):
    _fields_ = [("saved", c_int), ("count", c_int), ("ranks", c_int * 16),
                ("reserved", c_int64 * 4)]


class TcpParams(Structure):
    _fields_ = [("meet", c_char_p), ("rank", c_int), ("nranks", c_int), ("secret", c_char_p),
                ("secret_bytes", c_size_t), ("job", c_char_p), ("timeout", c_double),
                ("reserved", c_uint32 * 8)]


def _load():
    named = os.environ.get("THINWIRE_LIBRARY")
    bundled = os.path.join(os.path.dirname(__file__), "libthinwire.so")
    if named is not None or os.path.exists(bundled):
        return ctypes.CDLL(named or bundled)
    try:
        return ctypes.CDLL(SONAME)
    except OSError as error:
        raise ImportError(f"libthinwire.so is not in the package, and the system has no {SONAME}: "
                          "install it with 'pip install ./python', or set THINWIRE_LIBRARY to the "
                          "path of one") from error


def _prototypes(lib):
    text, handle = c_char_p, c_void_p
    lib.tw_version.restype = text
    lib.tw_last_error.restype = text
    lib.tw_error_text.restype = text
    lib.tw_error_text.argtypes = [c_int]
    for name in ("tw_group_free", "tw_transport_free"):
        getattr(lib, name).restype = None
        getattr(lib, name).argtypes = [handle]
    calls = {
        "tw_transport_self": [POINTER(handle)],
        "tw_transport_threads": [POINTER(handle), c_int],
        "tw_transport_sockets": [POINTER(handle), POINTER(c_int), c_int, c_int],
        "tw_transport_tcp": [POINTER(handle), POINTER(TcpParams)],
        "tw_transport_join": [POINTER(handle), POINTER(TcpParams)],
        "tw_transport_info": [handle, POINTER(text), POINTER(c_int), POINTER(c_int),
                              POINTER(Traffic)],
        "tw_group_create": [POINTER(handle), handle, POINTER(GroupParams)],
        "tw_group_add": [handle, c_int64, POINTER(SelectParams), POINTER(c_int)],
        "tw_group_add_pieces": [handle, POINTER(c_int64), c_int, POINTER(SelectParams),
                                POINTER(c_int)],
        "tw_group_memory": [handle, POINTER(Memory)],
        "tw_group_open": [handle],
        "tw_allreduce": [handle, c_int, handle, handle],
        "tw_allreduce_start": [handle, c_int, handle, handle],
        "tw_allreduce_start_pieces": [handle, c_int, POINTER(handle), POINTER(handle), c_int],
        "tw_allreduce_wait": [handle, c_int],
        "tw_group_set_rate": [handle, c_int, c_double],
        "tw_group_set_density": [handle, c_int, c_double],
        "tw_group_set_weight": [handle, c_double],
        "tw_group_set_common": [handle, POINTER(c_double), c_int],
        "tw_group_subtract": [handle, c_int, POINTER(handle), c_int],
        "tw_group_info": [handle, c_int, POINTER(StepInfo)],
        "tw_group_get_residual": [handle, c_int, handle],
        "tw_group_save": [handle, text],
        "tw_group_load": [handle, POINTER(text), c_int],
        "tw_group_load_some": [handle, POINTER(text), c_int, POINTER(Missing)],
        "tw_group_shrink": [handle, POINTER(Members)],
        "tw_group_grow": [handle, POINTER(Members)],
        "tw_group_broadcast": [handle, c_int, handle, c_size_t],
        "tw_group_verify": [handle, handle, c_size_t, POINTER(Members)],
        "tw_scheme": [c_int, POINTER(text), POINTER(text), POINTER(text), POINTER(text)],
    }
    for name, arguments in calls.items():
        getattr(lib, name).argtypes = arguments
        getattr(lib, name).restype = c_int
    return lib


lib = _prototypes(_load())


# The choices of thinwire.h that the library's texts name, as callers write them here.
_WORDS = {"TW_MEAN": "'mean'", "TW_SUM": "'sum'", "TW_MEAN_OF_SENDERS": "'mean_of_senders'",
          "TW_GLOBAL_EXACT": "'exact'", "TW_GLOBAL_REUSE": "'reuse'",
          "TW_MEMBERSHIP_FIXED": "'fixed'", "TW_MEMBERSHIP_ELASTIC": "'elastic'",
          "TW_WARMUP_EXPONENTIAL": "'exponential'", "TW_WARMUP_LINEAR": "'linear'",
          "TW_WARMUP_COSINE": "'cosine'", "TW_WARMUP_CALLER": "'caller'",
          "TW_CHECKSUM_ON": "True", "TW_CHECKSUM_OFF": "False",
          "TW_FEEDBACK_ON": "True", "TW_FEEDBACK_OFF": "False",
          "TW_COUNT_OF_SCHEME": "'of_scheme'", "TW_COUNT_PER_RANK": "'per_rank'",
          "TW_BEFORE_NOTHING": "'nothing'", "TW_BEFORE_ADAMW": "'adamw'",
          "TW_F32": "float32", "TW_F16": "float16", "TW_BF16": "bfloat16",
          "TW_CPU": "CPU", "TW_CUDA": "CUDA"}
_FIELDS = {"method": "select", "global": "global_"}     # that have other names here


def check(status):
    """Raises the exception of a failed call, with the library's text."""
    if status < 0:
        kind = errors.BY_CODE.get(status, errors.Error)
        text = lib.tw_last_error().decode(errors="replace")
        text = re.sub(r"\bTW_\w+", lambda found: _WORDS.get(found[0], found[0]), text)
        raise kind(re.sub(r"\b(method|global)(?=: )", lambda found: _FIELDS[found[0]], text))


def version() -> str:
    """The version of the loaded library, for instance "0.2.0"."""
    return lib.tw_version().decode()


def schemes() -> Dict[str, Dict[str, str]]:
    """The schemes by name: {"oktopk": {"select": "reuse", "exchange": ..., "description": ...}}."""
    found, texts = {}, [c_char_p() for _ in range(4)]
    while lib.tw_scheme(len(found), *map(ctypes.byref, texts)) == 0:
        name, select, exchange, description = (text.value.decode() for text in texts)
        found[name] = {"select": select, "exchange": exchange, "description": description}
    return found
