"""on_loss="shrink": a job that goes on when ranks die.

The exchange of an elastic group (docs/membership.md) is over connections of its own, so it does not
need torch's process group after the ranks have met. When a step fails because a rank is lost, the
others agree on who is left, and repeat what has failed. Ranks are numbered anew then; texts and
figures name them by the numbers that they had at the start, which are those of the script.
"""
import warnings

from .errors import (ExcludedError, ParamError, QuorumError, StateError, TimeoutError,
                     TransportError)

CHOICES = ("raise", "shrink")
# After these a rank may be lost. StateError: it has closed its exchange, as after an exception.
LOSSES = (TimeoutError, TransportError, StateError)
_MOST = 8       # attempts of a step, and of an agreement, in which nobody is lost
_RESTART = ("Let torchrun restart the job (--max-restarts), and continue from the last states of "
            "all ranks that are left: load_state_dict(states, allow_missing=True)")


def check(on_loss):
    if on_loss not in CHOICES:
        raise ParamError(f"on_loss: {on_loss!r}; accepted is {', '.join(map(repr, CHOICES))}")


def refuse(on_loss, what, instead=""):
    """For models whose other collectives are torch's."""
    check(on_loss if on_loss is not None else "raise")
    if on_loss == "shrink":
        raise ParamError(f"on_loss: 'shrink' is not possible with {what}, whose process group dies "
                         f"with a rank. {_RESTART}{instead}")


class Membership:
    """The ranks of an elastic group. group is set when it is open."""

    def __init__(self, transport, timeout):
        self.transport, self.timeout = transport, timeout
        self.ranks = list(range(transport.nranks))      # at the start, by the number now
        self.lost = []          # {"rank", "norm", "exchanges"} of ranks that are no members any more
        self.group = None
        self.vain = 0           # changes in this step in which nobody was lost
        self.joined = 0         # ranks that came later
        self.started = transport.nranks

    def begin_step(self):
        self.vain = 0

    def survive(self, error):
        """Goes on without the ranks whose loss was the cause of an error. Raises it if it had
        another one. Collective: all that are left call it."""
        while True:
            self.vain += 1
            if self.vain > _MOST:
                raise error
            try:
                change = self.group.shrink()
            except (TimeoutError, TransportError) as failure:   # another was lost meanwhile
                error = failure
                continue
            except StateError:      # the group is whole: this error had another cause
                raise error from None
            except ExcludedError as failure:
                raise ExcludedError(f"{failure}. This process was stopped, or out of reach, for "
                                    f"longer than the timeout of {self.timeout:g} s") from None
            except QuorumError as failure:
                raise QuorumError(f"{failure}. Restart the job from its last checkpoint: "
                                  "load_state_dict(states, allow_missing=True)") from None
            if change.lost:
                self.vain = 0
            self.note(change)
            return change

    def note(self, change):
        """Keeps books of a change, and warns on the lowest rank that is left."""
        names = self.ranks + [f"{rank} (new)" for rank in range(len(self.ranks),
                                                                change.nranks_before)]
        gone = [{"rank": names[rank], "norm": norm, "exchanges": step}
                for rank, norm, step in change.lost]
        self.ranks = [names[old] if old is not None else self._next() for old in change.before]
        self.lost += gone
        if gone and self.transport.rank == 0:
            warnings.warn(f"thinwire: {'; '.join(map(_told, gone))}. {change.nranks} of "
                          f"{change.nranks_before} ranks go on", RuntimeWarning, stacklevel=2)

    def _next(self):
        """The name of a new rank: those of lost ranks are not used again."""
        self.joined += 1
        return self.started + self.joined - 1

    def stats(self):
        """Numbers for a logger. lost_norm: the sum of what is known, which the norm of all that was
        lost does not exceed."""
        return {"ranks": len(self.ranks), "lost_ranks": len(self.lost), "joined_ranks": self.joined,
                "lost_norm": sum(one["norm"] or 0.0 for one in self.lost)}


def _told(one):
    known = "not known" if one["norm"] is None else \
        f"{one['norm']:.4g} after {one['exchanges']} exchanges"
    return (f"rank {one['rank']} is lost, and its residual with it (the last norm that it told: "
            f"{known})")
