"""Errors of the C library as Python exceptions, one class for each tw_error."""
import builtins


class Error(RuntimeError):
    """A failed call. The text names the field, rank or file at fault."""

    code = 0


class NullError(Error):
    code = -1


class SizeError(Error):
    code = -2


class KError(Error):
    code = -3


class DensityError(Error):
    code = -4


class NameError(Error):  # noqa: A001 - thinwire.NameError
    code = -5


class ParamError(Error):
    code = -6


class NumberError(Error):
    """A rank's gradient holds NaN or infinity, or a sum overflows. Nothing has changed."""

    code = -7


class StateError(Error):
    code = -8


class IndexError(Error):  # noqa: A001 - thinwire.IndexError
    code = -9


class MemoryError(Error):  # noqa: A001 - thinwire.MemoryError
    code = -10


class TransportError(Error):
    """A connection failed; the text names the rank at its other end."""

    code = -11


class TimeoutError(Error, builtins.TimeoutError):  # noqa: A001 - thinwire.TimeoutError
    """Ranks are missing; the text names them. Also Python's own TimeoutError."""

    code = -12


class MismatchError(Error):
    """Ranks, or a saved state and the model, do not agree; the text names the field."""

    code = -13


class ProtocolError(Error):
    code = -14


class FileError(Error):
    code = -15


class DamagedError(Error):
    code = -16


class DeviceError(Error):
    code = -17


class QuorumError(Error):
    """Too few ranks are left to go on."""

    code = -18


class ExcludedError(Error):
    """The other ranks go on without this one."""

    code = -19


BY_CODE = {kind.code: kind for kind in Error.__subclasses__()}
