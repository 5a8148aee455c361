"""Engine: the gradients of some parameters, summed over the ranks of a process group.

Every parameter is a tensor of one tw_group. So residuals belong to parameters, however gradients
are bucketed. The DDP hook and the optimizers use it:

    begin(number, grad) ... finish()      grad is now the mean over ranks, equal on all ranks

With whole_model all parameters (of a parameter group) are one tensor: the k largest values are
selected from the whole model, not from each parameter. Gradients are the pieces of the tensor and
stay where they are. With scheme dense or auto, or a GradScaler, the engine copies them into a
vector.

With AdamW before selection the result is a mean update. Gradients stay what they were. subtract()
takes the updates from the parameters; where that does not suffice, updates[] has the update of each
parameter.

With a GradScaler gradients are unscaled before the exchange and scaled after it, so residuals do
not depend on the loss scale. All parameters are then one bucket, so that an infinity anywhere
refuses the whole step: residuals do not change, and every gradient becomes infinite, which the
scaler sees on all ranks.
"""
import contextlib
import os
import re
import time
import warnings
from numbers import Real

import torch
import torch.distributed as dist

from . import library, membership, options as known, saved, states
from .errors import Error, NumberError, ParamError, SizeError, StateError
from .group import Change, Group
from .membership import LOSSES, Membership
from .parameters import check_whole
from .process_group import timeout_of, transport_of
from .schedule import Schedule, warn_once
from .stats import TRIAL, Stats
from .tensors import Groups, Tensors

_TYPES = {torch.float32: library.F32, torch.float16: library.F16, torch.bfloat16: library.BF16}
_DENSE_SAMPLE = 25 << 20        # bytes of the dense allreduce that is timed: one bucket of DDP
_LONGEST = 1000000              # seconds: torch's stores count milliseconds in an int
_MOST_THREADS = 256             # the library's limit
_WHOLE_VECTORS = {"dense", "auto"}      # schemes and exchanges to which pieces are unknown
_MEMBERSHIP = {"membership": "on_loss", "'elastic'": "'shrink'", "'fixed'": "'raise'"}
_TIMEOUT = 300.0                # seconds, if the process group has none of its own


def check_type(name, parameter):
    if parameter.dtype not in _TYPES:
        raise ParamError(f"parameter '{name}' is {parameter.dtype}; accepted are "
                         f"{', '.join(map(str, _TYPES))}")


def _check(parameters):
    if not parameters:
        raise ParamError("no parameter requires a gradient: there is nothing to compress")
    for name, parameter in parameters:
        check_whole(name, parameter)
        check_type(name, parameter)
        if parameter.numel() == 0:
            raise ParamError(f"parameter '{name}' has no elements; freeze it before the model is "
                             "wrapped: requires_grad_(False)")
        if parameter.device != parameters[0][1].device:
            raise ParamError(f"parameter '{name}' is on {parameter.device}, '{parameters[0][0]}' "
                             f"on {parameters[0][1].device}; accepted is one device a rank")


def _check_options(timeout, scaler, on_loss, others):
    """Checks the options that reach the library in another form, or not at all."""
    known.check(others)
    membership.check(on_loss)
    if on_loss == "shrink" and others.get("count") == "per_rank":
        raise ParamError("on_loss, count: 'shrink' is not possible with 'per_rank', which needs a "
                         "fixed number of ranks; give count='of_scheme'")
    if timeout is not None and not (isinstance(timeout, Real) and 0 <= timeout <= _LONGEST):
        raise ParamError(f"timeout: {timeout!r}; accepted are seconds up to {_LONGEST}, and None "
                         "or 0: as long as the process group waits")
    if scaler is not None and not hasattr(scaler, "get_scale"):
        raise ParamError(f"grad_scaler: {scaler!r}; accepted is the GradScaler of the loss")


def _enabled(scaler):
    """GradScaler(enabled=False) checks no gradient: infinities would reach the weights."""
    return scaler is not None and getattr(scaler, "is_enabled", lambda: True)()


class Engine:
    """parameters: [(name, parameter)], in the order in which gradients become ready."""

    def __init__(self, parameters, process_group=None, *, groups=None, scheme="oktopk",
                 density=None, k=0, steps=None, warmup="exponential", warmup_steps=None,
                 warmup_density=None, whole_model=False, grad_scaler=None, bucket=0, threads=0,
                 timeout=None, on_loss="raise", time_dense=True, transport=None, opens=True,
                 **options):
        _check(parameters)
        _check_options(timeout, grad_scaler, on_loss, options)
        self.schedule = Schedule(sum(parameter.numel() for _, parameter in parameters), density, k,
                                 steps, warmup, warmup_steps, warmup_density)
        if not _enabled(grad_scaler):
            grad_scaler = None
        if bucket and (whole_model or grad_scaler is not None):
            raise ValueError("bucket: with whole_model or grad_scaler all of a step travels as one "
                             "bucket; leave it out")
        self.names = [name for name, _ in parameters]
        self.sizes = [parameter.numel() for _, parameter in parameters]
        self.dtypes = [parameter.dtype for _, parameter in parameters]
        self.device = parameters[0][1].device
        self.kinds = list(zip(self.sizes, self.dtypes, [self.device] * len(self.sizes)))
        self.process_group, self.scaler, self.scheme = process_group, grad_scaler, scheme
        self.whole_model = whole_model
        self.as_a_whole = whole_model or grad_scaler is not None    # waits for all gradients
        self.in_pieces = whole_model and grad_scaler is None and not _WHOLE_VECTORS & {
            scheme, options.get("exchange")}
        self.groups = groups or Groups([0] * len(parameters), [{}])
        self.tensors = Tensors(self.sizes, self.groups, whole_model)
        self.begun, self.given = [], {}     # given: source and result, by number
        self.scale, self.rates, self.process = 1.0, None, os.getpid()
        self.applied = {}       # numbers that the optimizer applies to results, by name
        self.exchanged = set()  # parameters, in this step
        self.step = 0           # good steps, those before load_state_dict() too
        self.is_fresh = False   # the last step's result was not used yet
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        timeout = timeout or min(timeout_of(process_group) or _TIMEOUT, _LONGEST)
        self.transport = transport or transport_of(process_group, timeout)
        self.costs = Stats(sum(self.sizes), self.transport.nranks)
        self.members = None     # of an elastic group
        if on_loss == "shrink" and (transport or self.transport.nranks > 1):
            self.members = Membership(self.transport, timeout)
            options["membership"] = "elastic"
        self.keeps_sources = self.members is not None and not self.in_pieces and bool(
            _WHOLE_VECTORS & {scheme, options.get("exchange")})     # a dense sum overwrites them
        self.unstarted = {}     # tensors, with the error that had broken the group before
        self.counts = [0] * len(self.tensors.sizes)     # steps of each tensor
        self.leaves_out = False         # comparisons until the next step: others may have failed
        self.vectors = self.updates = self.group = self.places = self.targets = None
        if self.schedule.options["density"] == 1.0:     # a threshold from earlier steps would
            options["select"] = options.get("select") or "exact"    # leave some values behind
        try:
            self._make_vectors()
            self._make_group(scheme=scheme, bucket=library.LARGEST if self.as_a_whole else bucket,
                             threads=threads or min(torch.get_num_threads(), _MOST_THREADS),
                             timeout=timeout, **self.schedule.options, **options)
            if not opens:       # what can be wrong with the arguments has been checked
                return
            self._open()
            if time_dense:
                self._time_dense()
            if self.groups.is_adaptive:
                self.warn_of_low_density()
        except BaseException:       # perhaps on this rank only: the others must not wait for it
            self.close()
            raise

    @property
    def makes_updates(self):
        """Whether results are mean updates, not mean gradients."""
        return self.groups.rates is not None

    def _make_vectors(self):
        copies = self.whole_model and not self.in_pieces
        updates = self.makes_updates and (not self.in_pieces or self.groups.whole_updates)
        if not copies and not updates:
            return
        vectors = [torch.empty(size, dtype=torch.float32, device=self.device)
                   for size in self.tensors.sizes]
        pieces = self.tensors.split(vectors, self.sizes)
        if copies:
            self.vectors, self.slots = vectors, pieces
            self.sums = [torch.empty_like(one) for one in vectors] if self.keeps_sources else \
                vectors
            self.sum_slots = self.tensors.split(self.sums, self.sizes)
        if updates:
            self.updates = self.sum_slots if copies else pieces

    def _make_group(self, **options):
        if self.stream is not None:
            options.update(device=library.CUDA, ordinal=self.device.index or 0,
                           stream=self.stream.cuda_stream)
        self.group = Group(self.transport, **options)
        as_floats = self.vectors is not None or self.scaler is not None
        self.types = list(self.dtypes)      # in which the library reads gradients
        for size, group, numbers in zip(self.tensors.sizes, self.tensors.groups,
                                        self.tensors.members):
            if as_floats or len({self.dtypes[number] for number in numbers}) > 1:
                for number in numbers:
                    self.types[number] = torch.float32
            chosen = {"type": _TYPES[self.types[numbers[0]]], **self.groups.options[group]}
            if self.in_pieces:
                self.group.add_pieces([self.sizes[number] for number in numbers], **chosen)
            else:
                self.group.add(size, **chosen)

    def _open(self):
        try:
            self.group.open()
        except Error as error:
            raise type(error)(self._by_name(self._of_whole_model(error))) from None
        if self.members is not None:
            self.members.group = self.group
            self._count()       # a new rank takes the others' steps

    def _of_whole_model(self, error):
        """With and without whole_model ranks differ in the number of tensors, or in the bucket."""
        found = re.search(r"(tensors|bucket): rank (\d+) has (\d+), rank (\d+) has (\d+)",
                          str(error))
        if found is None:
            return error
        first, one, second, other = map(int, found.groups()[1:])
        if found[1] == "tensors":
            name, kinds = "whole_model", {len(self.sizes): False, len(set(self.groups.of)): True}
        else:
            name, kinds = "whole_model or grad_scaler", {one: False, other: False,
                                                         library.LARGEST: True}
        if {kinds.get(one), kinds.get(other)} != {False, True}:
            return error
        return type(error)(f"{name}: rank {first} has {kinds[one]}, rank {second} has "
                           f"{kinds[other]}; give all ranks the same")

    def warn_of_low_density(self):
        if self.schedule.is_abrupt and self.transport.rank == 0:
            warn_once()

    def _time_dense(self):
        """Times a dense allreduce of one bucket over the script's process group."""
        if self.transport.nranks == 1:
            return
        count = min(self.costs.elements, _DENSE_SAMPLE // 4)
        sample = torch.zeros(count, dtype=torch.float32, device=self.device)
        for _ in range(2):      # the first one opens connections
            begin = time.monotonic()
            dist.all_reduce(sample, group=self.process_group)
            if self.stream is not None:
                torch.cuda.synchronize(self.device)
            self.costs.dense_seconds = (time.monotonic() - begin) * self.costs.elements / count

    # ---- a step

    def begin(self, number, grad):
        """Hands a gradient over; leave it alone until finish(). Its exchange starts now, or that
        of the whole model in launch(). CUDA: call it in self.stream."""
        try:
            self._begin(number, grad)
        except Exception:
            self.begun = []     # else the next step would find its gradients there, not started
            raise

    def _begin(self, number, grad):
        if grad.is_sparse:
            raise ParamError(f"parameter '{self.names[number]}' has a sparse gradient; use "
                             "sparse=False in embeddings")
        now = grad.numel(), grad.dtype, grad.device
        if now != self.kinds[number]:
            raise SizeError(f"parameter '{self.names[number]}' has changed: {_kind(*now)}, it was "
                            f"{_kind(*self.kinds[number])}; wrap and compress the model again")
        if not self.begun:
            self._prepare()
        source = self._source(number, grad)
        self.given[number] = source, self._result(number, source)
        self.begun.append((number, grad, *self.given[number]))
        if not self.whole_model:
            self._start(number)

    def launch(self):
        """Starts the exchange of a whole model, whose gradients have all begun: without it finish()
        waits for nothing. If finish() follows at once, its thread runs the exchange, and no other
        one is woken."""
        assert len(self.begun) <= len(self.sizes), "a backward pass was cut short"
        if self.whole_model and len(self.begun) == len(self.sizes):
            try:
                for tensor in range(len(self.tensors.sizes)):
                    self._start(tensor)
            except Exception:
                self.begun = []     # as in begin()
                raise

    def _prepare(self):
        """Asks for what may differ from step to step."""
        if self.scaler is not None:
            self.scale = self.scaler.get_scale()
        if self.groups.rates is not None:
            self.rates = self.groups.rates()
        applied = self.groups.applied()
        if applied != self.applied:
            self._set(self.group.set_common, list(applied.values()))
            self.applied = applied
        if self.schedule.function is not None:
            self._set(self.group.set_density, library.ALL, self.schedule.at(self.step))

    def _set(self, call, *arguments):
        """Calls a setting of the group, which a refused step may have left broken."""
        try:
            call(*arguments)
        except LOSSES as error:
            if self.members is None:
                raise
            self._survive(error)
            call(*arguments)

    def set_weight(self, weight):
        """This rank's weight in means from the next step on."""
        self._set(self.group.set_weight, weight)

    def _start(self, tensor):
        try:
            self._start_now(tensor)
        except LOSSES as error:
            if self.members is None:
                raise
            self.unstarted[tensor] = error      # finish() starts it, with the ranks that are left

    def _start_now(self, tensor):
        if self.rates is not None:
            self.group.set_rate(tensor, self.rates[self.tensors.groups[tensor]])
        if self.vectors is not None:
            self.group.start(tensor, self.vectors[tensor], self.sums[tensor])
            return
        sources, results = zip(*(self.given[number] for number in self.tensors.members[tensor]))
        if self.in_pieces:
            self.group.start_pieces(tensor, [source.data_ptr() for source in sources],
                                    results if results[0] is not None else None)
        else:
            self.group.start(tensor, sources[0], results[0])

    def _result(self, number, source):
        """Where the result goes, as the library writes it: contiguous, float32. None: nowhere."""
        if self.vectors is not None:
            return self.sum_slots[number].view_as(source)
        if self.makes_updates:
            return self.updates[number] if self.updates is not None else None
        if source.dtype == torch.float32 and not self.keeps_sources:
            return source
        return torch.empty_like(source, dtype=torch.float32)

    def _source(self, number, grad):
        """The gradient as the library reads it: contiguous, unscaled."""
        if self.vectors is not None:
            source = self.slots[number].view_as(grad).copy_(grad)
        elif self.scaler is not None:
            source = grad.contiguous().float()
        elif grad.dtype == self.types[number] and grad.is_contiguous():
            return grad
        else:
            return grad.contiguous().to(self.types[number])
        return source.mul_(1.0 / self.scale) if self.scaler is not None else source

    def _check_complete(self, begun):
        """Refuses a parameter without a gradient: it could not receive its share of the result."""
        if len(begun) == len(self.sizes):
            return
        missing = set(range(len(self.sizes))) - {number for number, _, _, _ in begun}
        if missing:
            raise ParamError(f"parameter '{self.names[min(missing)]}' got no gradient on any rank; "
                             "whole_model=True is for models that use all their parameters in "
                             "every step")

    def finish(self, then=None):
        """Waits until every gradient that was begun is the mean over ranks. Raises Error, the same
        on all ranks. Returns False for a step to skip: gradients are infinite then. then() is
        called before anything is counted, so that a GPU gets work soon."""
        begun = self.begun
        try:
            if self.whole_model:
                self._check_complete(begun)
            self._wait()
        except NumberError as error:
            if self.scaler is None:
                raise NumberError(f"{self._by_name(error)}; with loss scaling, give grad_scaler= "
                                  "your GradScaler and such steps are skipped") from None
            for _, grad, _, _ in begun:
                grad.fill_(float("inf"))
            return False
        except Error as error:
            raise type(error)(self._by_name(error)) from None
        finally:
            self.begun, self.given = [], {}
        if then is not None:
            then()
        if not self.makes_updates:
            for _, grad, _, mean in begun:
                if self.scaler is not None:
                    mean.mul_(self.scale)
                if mean is not grad:
                    grad.copy_(mean)
        tensors = range(len(self.tensors.sizes))
        if not self.whole_model:
            tensors = [number for number, _, _, _ in begun]
            self.exchanged.update(tensors)
        self.costs.add([self.group.info(tensor) for tensor in tensors])
        return True

    def _wait(self):
        """Waits for all tensors that were started; without ranks that are lost, if they may be."""
        if self.members is None:
            self.group.wait()
            return
        tensors = range(len(self.tensors.sizes)) if self.whole_model else \
            sorted(number for number, _, _, _ in self.begun)
        self.members.begin_step()
        self.leaves_out = False
        refused, left = None, list(tensors)
        while left:
            failed, self.unstarted = self.unstarted, {}
            for tensor in [one for one in left if one not in failed]:
                try:
                    self.group.wait(tensor)
                except LOSSES as error:
                    failed[tensor] = error
                except Error as error:
                    refused = refused or error
            left = sorted(failed)
            if left:
                self._survive(failed[left[0]])
                self.leaves_out = all(self.group.info(tensor).step > self.counts[tensor]
                                      for tensor in left)
                for tensor in left:
                    self._start(tensor)
        self.group.wait()       # of nothing: the next step begins with the first bucket
        self._count()
        if refused is not None:
            raise refused

    def _count(self):
        self.counts = [self.group.info(tensor).step for tensor in range(len(self.counts))]

    def _survive(self, error):
        self.members.survive(error)
        self.costs.set_ranks(self.transport.nranks)

    # ---- between the steps of an elastic group

    def _between(self, call, *arguments):
        """Calls what is collective and not a step. If a rank is lost meanwhile it is left out, with
        all that follow it up to the next step: others may have completed it. They are also left out
        after a step that this rank has completed in survive(): others may have failed in them."""
        if self.leaves_out:
            return None
        try:
            result = call(*arguments)
        except LOSSES as error:
            self.leaves_out = True
            self.members.begin_step()
            self._survive(error)
            return None
        if isinstance(result, Change):
            self.members.note(result)
            self.costs.set_ranks(self.transport.nranks)
        return result

    def verify(self, digest):
        """Compares some bytes. Ranks that differ from the first are lost, and raise MismatchError.
        Collective."""
        self._between(self.group.verify, digest)

    def grow(self):
        """Lets processes join. Returns how many have. Collective."""
        change = self._between(self.group.grow)
        return change.before.count(None) if change is not None else 0

    def broadcast(self, data, wants):
        """The bytes of rank 0, on the ranks that want them. Returns False if they did not come.
        Collective."""
        def run():
            self.group.broadcast(data, data.nelement() * data.element_size(), wants)
            return True
        return self._between(run) is True

    def locate(self, parameters):
        """Looks where the parameters lie. True: elsewhere than in the step before."""
        places = [parameter.data_ptr() for parameter in parameters]
        if places == self.places:
            return False
        plain = all(parameter.dtype == torch.float32 and parameter.is_contiguous()
                    for parameter in parameters)
        self.places, self.targets = places, None
        if plain and self.in_pieces:
            self.targets = [self.group.pointers(tensor, [places[number] for number in numbers])
                            for tensor, numbers in enumerate(self.tensors.members)]
        return True

    def subtract(self, parameters):
        """Subtracts the mean updates of the last step from all parameters, which locate() has seen.
        CUDA: call it in on_stream()."""
        if self.updates is not None:
            torch._foreach_sub_(parameters, [update.view_as(one) for one, update
                                             in zip(parameters, self.updates)])
            return
        copies = {}         # of parameters that are not as the library needs them
        for tensor, numbers in enumerate(self.tensors.members):
            if self.targets is None:
                some = [parameters[number].float().contiguous() for number in numbers]
                self.group.subtract(tensor, some)
                copies.update(zip(numbers, some))
            else:
                self.group.subtract(tensor, self.targets[tensor])
        for number, copy in copies.items():
            if copy.data_ptr() != self.places[number]:
                parameters[number].copy_(copy)
        _note_changes(parameters)

    @contextlib.contextmanager
    def on_stream(self):
        """Our stream, between what the current one has queued and what it will queue."""
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)

    def _by_name(self, error):
        """The error's text with the user's names instead of the library's."""
        def named(match):
            tensor, piece, element = (part and int(part) for part in match.groups())
            if element is None and self.whole_model:
                return "all parameters" if len(self.tensors.sizes) == 1 else \
                    f"parameter group {self.tensors.groups[tensor]}"
            if piece is not None:
                number = self.tensors.members[tensor][piece]
            else:
                number, element = self.tensors.find(tensor, element or 0)
            at = "" if match[3] is None else f": element {element}"
            return f"parameter '{self.names[number]}'{at}"
        text = re.sub(r"\btensor (\d+)(?:: (?:piece (\d+), )?element (\d+))?", named, str(error))
        if text.startswith("membership: rank"):
            for theirs, ours in _MEMBERSHIP.items():
                text = text.replace(theirs, ours)
        text = re.sub(r"\bcommon value (\d+)(.*); call tw_group_set_common alike on all ranks",
                      lambda found: f"{list(self.applied)[int(found[1])]}{found[2]}; set it alike "
                      "on all ranks, and step schedulers on all of them", text)
        text = re.sub(r"\bcommon values(.*); call tw_group_set_common alike on all ranks",
                      r"numbers in param_groups\1; give all ranks the same groups", text)
        return re.sub(r"call tw_group_set_(rate|density) alike on all ranks",
                      "lr and density must be equal on all ranks", text)

    def end_step(self, good=True):
        self.step += good
        self.is_fresh = good
        if self.updates is not None and not self.whole_model:
            for number in set(range(len(self.sizes))) - self.exchanged:
                self.updates[number].zero_()        # no rank has used this parameter
            self.exchanged.clear()
        self.costs.end_step(skipped=not good)
        if self.costs.slower_than_dense() and self.transport.rank == 0:
            warnings.warn(f"thinwire: {self.scheme} takes {1e3 * self.costs.fastest:.2f} ms a step "
                          f"(the fastest of {TRIAL}), a dense allreduce of this model "
                          f"{1e3 * self.costs.dense_seconds:.2f} ms (measured at the start): on "
                          "this network training without thinwire would be faster")

    def begin_step(self):
        """Forgets what is left of a step that failed."""
        self.costs.begin_step()
        self.exchanged.clear()

    def check_used(self):
        """Refuses a second exchange before step(): it would overwrite updates, and would be a
        second step for the moments."""
        if self.is_fresh and self.makes_updates:
            raise StateError("backward() once more before step(): this step's gradients have been "
                             "exchanged already. Accumulate under no_sync(), and compute gradients "
                             "that you drop under it too, or with requires_grad_(False). After "
                             "optimizer.zero_grad() training goes on, but what this step has sent "
                             "is lost, with what residuals had added to it")

    # ---- statistics and state

    def stats(self):
        """Bytes, counts and times: totals, and those of the last step, as last_..."""
        members = self.members.stats() if self.members is not None else {}
        return {**self.costs.as_dict(), **members}

    def summary(self):
        """One line."""
        return f"thinwire {self.scheme}, {self.transport.nranks} ranks, {self.costs.line()}"

    def __repr__(self):
        return f"<thinwire.Engine: {self.summary()}>"

    def residuals(self):
        """This rank's residuals: a host tensor of n elements for each parameter."""
        vectors = [torch.empty(size, dtype=torch.float32, device="cpu")
                   for size in self.tensors.sizes]
        for tensor, vector in enumerate(vectors):
            self.group.residual(tensor, vector)
        return self.tensors.split(vectors, self.sizes)

    def residual_norm(self):
        """The 2-norm of this rank's residual. Copies it to the host."""
        return float(torch.stack([one.norm() for one in self.residuals()]).norm())

    def state_dict(self):
        """This rank's residuals, thresholds and counters. Every rank has its own: save all of them,
        with torch.save or under one key of torch.distributed.checkpoint."""
        rank, nranks = self.transport.rank, self.transport.nranks
        return {"version": 2, "note": states.note(rank, nranks), "rank": rank, "nranks": nranks,
                "names": list(self.names), "sizes": list(self.sizes),
                "state": states.RankState.of(saved.bytes_of(self.group), rank, nranks)}

    def gather_state_dict(self, dst=None):
        """The states of all ranks in one dict, which load_state_dict() takes on all ranks of any
        number. Collective. dst: the rank that gets it; others get None. Default: all."""
        if self.members is not None:
            raise StateError("gather_state_dict(): not with on_loss='shrink', since a rank may die "
                             "meanwhile; save state_dict() on every rank, and give "
                             "load_state_dict() the list of those that are there")
        return states.gather(self, dst)

    def load_state_dict(self, state, allow_missing=False):
        """Continues from this rank's dict, from gather_state_dict(), or from the list of the dicts
        of all ranks. In the last two cases the run that saved may have had another number of ranks;
        each rank's state goes to one rank, and all ranks must give the same. Collective.

        allow_missing: states of ranks that died may be missing from the list, and a rank that has
        none gives an empty one. Their residuals are lost; stats() and a warning say how many."""
        with contextlib.ExitStack() as stack:
            try:
                mine = saved.own_of(state, self.transport.rank, self.transport.nranks,
                                    dict(zip(self.names, self.sizes)))
                paths = stack.enter_context(saved.files_of(mine, self.transport.nranks))
            except Exception:           # on this rank only: the others must not wait for it
                self.refuse_state()
                raise
            try:
                missing = self.group.load(paths, allow_missing)
            except Error as error:
                if not (saved.is_missing(error) and states.is_of_one_process(state)):
                    raise saved.explain(error) from None
                self._check_new()
                return
        self.is_fresh = False
        self._count()
        self.step = max(self.counts)
        self.leaves_out = False
        self.costs.missing_states, self.costs.saved_states = missing.count, missing.saved
        if missing.count and self.transport.rank == 0:
            warnings.warn(f"thinwire: {saved.missing_text(missing)}", RuntimeWarning, stacklevel=2)

    def _check_new(self):
        """Before the state of one process: there are no residuals yet, and it brings none."""
        if self.step > 0:
            raise StateError("the state is of one process, which has no residuals; load it before "
                             "the first step")

    def refuse_state(self):
        """Lets load_state_dict() of all other ranks fail."""
        with contextlib.suppress(Error):
            self.group.load(["what load_state_dict() was given"])

    def close(self):
        """Frees everything; other ranks that wait for this one fail at once. Does nothing in a
        forked process: the library's threads exist in the parent only."""
        if os.getpid() != self.process:
            return
        if self.group is not None:
            self.group.close()
        self.transport.close()


def _note_changes(tensors):
    """Lets autograd know, as torch's own operations do: a backward pass that needs the old values
    raises. torch 1 cannot be told."""
    increment = getattr(torch.autograd.graph, "increment_version", lambda _: None)
    try:
        increment(tensors)
    except (RuntimeError, TypeError):       # before torch 2.6: one by one
        for tensor in tensors:
            increment(tensor)


def _kind(size, dtype, device):
    return f"{size} x {dtype} on {device}"
