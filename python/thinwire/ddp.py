"""compress(): a communication hook for DistributedDataParallel, and its state.

DDP calls the hook with a bucket of gradients as soon as the backward pass has filled it. The hook
queues the bucket and returns a Future. A thread sums bucket after bucket while the backward pass
continues, in DDP's order, which is the same on all ranks. backward() raises errors, after DDP has
finished its own work for the step.
"""
import functools
import os
import queue
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Union

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.nn import Embedding, EmbeddingBag
from torch.nn.parallel import DistributedDataParallel

from . import fsdp, membership
from .engine import Engine
from .errors import ParamError, StateError, TimeoutError, TransportError
from .library import LARGEST
from .options import check, shown
from .schedule import is_trained_adaptively
from .single import Single

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .options import CompressOptions

_GONE = (TimeoutError, TransportError)      # after which only a restart helps
_STUCK_SECONDS = 5.0    # after which a step that was aborted counts as stuck
_compressed = weakref.WeakSet()     # models. An attribute would keep them from being pickled


class _Job:
    """A bucket in the queue."""

    def __init__(self, numbers, used, bucket, device):
        self.numbers, self.used = numbers, used
        self.grads = bucket.gradients()
        self.buffer = bucket.buffer()
        self.last = bucket.is_last()
        self.since = time.monotonic_ns()    # for trace()
        cuda = device.type == "cuda"
        self.future = torch.futures.Future(devices=[device] if cuda else [])
        self.ready = torch.cuda.current_stream(device).record_event() if cuda else None


class _Worker(threading.Thread):
    """Runs jobs in order; at None closes the engine and ends. Holds the engine, but not the state
    that owns it."""

    def __init__(self, engine):
        super().__init__(daemon=True, name="thinwire")
        self.engine = engine
        self.jobs = queue.SimpleQueue()
        self.waiting = []       # buckets of this step
        self.begun = 0          # how many of these the engine has got
        self.error = None       # the next backward() raises it
        self.good = True        # no bucket of this step was refused
        self.left = False       # this rank has left the group
        self.ending = threading.Event()
        self.start()

    def run(self):
        while True:
            job = self.jobs.get()
            if job is None:
                self.ending.set()
                self.engine.close()
                return
            self.waiting.append(job)
            is_complete = job.last or not self.engine.as_a_whole
            try:
                with torch.cuda.stream(self.engine.stream):     # None: no effect
                    if is_complete or (self.engine.whole_model and job.used is None):
                        self._hand_over()
                    if is_complete:
                        self._run()
            except Exception as error:      # of the device
                self._fail(error)

    def leave(self):
        """After an error of this rank only: the others must not wait for it."""
        self.left = True
        self.engine.transport.abort()

    def _fail(self, error):
        self.leave()
        self.error = self.error or error
        jobs, self.waiting, self.begun = self.waiting, [], 0
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(self.error)

    def _hand_over(self):
        """Gives the engine the gradients of the buckets that it has not got yet. Those of a whole
        model come one by one: they start nothing before launch()."""
        jobs, self.begun = self.waiting[self.begun:], len(self.waiting)
        if self.engine.stream is not None:
            for job in jobs:
                self.engine.stream.wait_event(job.ready)
        if self.error is not None:
            return
        try:
            self.engine.check_used()
            self._begin(jobs)
        except Exception as error:      # backward() raises it
            self.error = error

    def _run(self):
        is_last = self.waiting[-1].last
        self._reduce(is_last)
        if is_last:
            self.good = True
            self.engine.begin_step()
        for job in self.waiting:
            job.future.set_result(job.buffer)
        self.waiting, self.begun = [], 0

    def _reduce(self, is_last):
        if self.error is not None:
            return
        try:
            self._launch()
            self.good &= self.engine.finish()
            if is_last:
                self.engine.end_step(self.good)     # may raise its warning, under -W error
        except Exception as error:
            self.error = error

    def _launch(self):
        try:
            self.engine.launch()
        except Exception:
            self.leave()
            raise

    def _begin(self, jobs):
        pieces = [piece for job in jobs for piece in zip(job.numbers, job.grads)]
        try:
            if jobs[0].used is not None:    # DDP would discard the sum of what no rank has used
                used = self.engine.transport.union([used for job in jobs for used in job.used])
                pieces = [piece for piece, anywhere in zip(pieces, used) if anywhere]
            for number, grad in pieces:
                self.engine.begin(number, grad)
        except Exception:
            self.leave()
            raise


class _Usage:
    """Notes which parameters got a gradient since the last step. DDP discards the sum for a
    parameter that got none on any rank. Tensor hooks run before DDP's."""

    def __init__(self, parameters):
        self.got = [False] * len(parameters)
        self.hooks = [parameter.register_hook(functools.partial(self._note, self.got, number))
                      for number, parameter in enumerate(parameters)]

    @staticmethod
    def _note(got, number, _):
        got[number] = True

    def take(self, numbers):
        taken = [self.got[number] for number in numbers]
        for number in numbers:
            self.got[number] = False
        return taken

    def close(self):
        for hook in self.hooks:
            hook.remove()


def _shut_down(worker, usage):
    """Lets the worker free everything. It may be stuck: in a step, or because CUDA frees memory only
    when the GPU is idle. The process may end all the same, since the worker is a daemon."""
    if usage is not None:
        usage.close()
    worker.jobs.put(None)
    if worker.is_alive() and not worker.ending.wait(0.2):   # in a forked process it is not
        worker.engine.transport.abort()     # ends a step that waits for others
    worker.join(_STUCK_SECONDS)
    if worker.is_alive():
        warnings.warn("thinwire: a step does not end; its memory is not freed", stacklevel=2)


def _check_dense(module):
    """DDP passes a sparse gradient to hooks as a bucket without gradients: nothing would sum it."""
    for name, part in module.named_modules():
        sparse = isinstance(part, (Embedding, EmbeddingBag)) and part.sparse
        if sparse and part.weight.requires_grad:
            raise ParamError(f"module '{name}' gives its weight a sparse gradient; use "
                             "sparse=False in embeddings")


def trained(model):
    """The parameters that a DistributedDataParallel synchronises, [(name, parameter)], in the order
    of the backward pass."""
    return [(name, parameter) for name, parameter in _trained(model.module.named_parameters())
            if name not in model.parameters_to_ignore]


def _trained(named):
    return [(name, parameter) for name, parameter in named if parameter.requires_grad][::-1]


def may_be_unused(model):
    """Whether a backward pass may leave parameters out."""
    return model.find_unused_parameters or model.static_graph


class State:
    """Returned by compress(): the hook's state, and the user's view of the engine."""

    def __init__(self, model, named, engine):
        self._numbers = {id(parameter): number for number, (_, parameter) in enumerate(named)}
        self.parameters = [parameter for _, parameter in named]     # keeps their ids unique
        self.engine = engine
        self._usage = _Usage(self.parameters) if may_be_unused(model) else None
        self._worker = _Worker(self.engine)
        self._looked = engine.groups.is_adaptive is not None    # for the optimizer of the model
        self._model, self._refusing = weakref.ref(model), []
        self._finalizer = weakref.finalize(self, _shut_down, self._worker, self._usage)

    @property
    def scaler(self):
        return self.engine.scaler

    def stats(self) -> Dict[str, float]:
        """Bytes, counts and times: totals, and those of the last step, as last_..."""
        return self.engine.stats()

    def summary(self) -> str:
        """One line."""
        return self.engine.summary()

    def residual_norm(self) -> float:
        """The 2-norm of this rank's residual. Copies it to the host."""
        return self.engine.residual_norm()

    def state_dict(self) -> Dict[str, Any]:
        """This rank's residuals, thresholds and counters. Every rank has its own: save all of them,
        with torch.save or under one key of torch.distributed.checkpoint."""
        return self.engine.state_dict()

    def gather_state_dict(self, dst: Optional[int] = None) -> Optional[Dict[str, Any]]:
        """The states of all ranks in one dict, which load_state_dict() takes on all ranks of any
        number. Collective. dst: the rank that gets it; others get None. Default: all."""
        return self.engine.gather_state_dict(dst)

    def load_state_dict(self, saved: Any, allow_missing: bool = False) -> None:
        """Continues from this rank's dict, from gather_state_dict(), or from the list of the dicts
        of all ranks. Collective. allow_missing: the list may lack ranks that died with their states,
        and a rank that has none gives []; stats() and a warning say what is lost."""
        self.engine.load_state_dict(saved, allow_missing)

    def __repr__(self):
        return f"<thinwire.State: {self.summary()}>"

    def __reduce__(self):
        """A copy or pickle is a dict: models of torch 2 hold the state, and scripts copy them."""
        return dict, (self.state_dict(),)

    def close(self) -> None:
        """Frees everything now, not when the model is freed or the process ends."""
        for hook in self._refusing:
            hook.remove()
        self._finalizer()

    # ---- the hook

    def _number(self, parameter):
        number = self._numbers.get(id(parameter))
        if number is None:
            raise ParamError(f"a parameter of shape {tuple(parameter.shape)} did not require a "
                             "gradient when the model was compressed; freeze parameters before it "
                             "is wrapped in DistributedDataParallel")
        return number

    def submit(self, bucket):
        if not self._finalizer.alive:
            raise StateError("the state was closed; the model cannot train with it any more")
        if bucket.index() == 0:
            self._raise()       # an error of an earlier pass that was cut short
        numbers = [self._number(parameter) for parameter in bucket.parameters()]
        used = self._usage.take(numbers) if self._usage is not None else None
        try:
            job = _Job(numbers, used, bucket, self.engine.device)
        except Exception:
            self._worker.leave()
            raise
        self._worker.jobs.put(job)
        if job.last and not self._raise_after_backward(job.future):
            return job.future.then(self._checked)
        return job.future

    def _checked(self, future):
        """For a rank in DDP's join(): it has no backward pass that could raise errors, and no
        step() that uses the result."""
        self.engine.is_fresh = False
        self._raise()
        return future.value()

    def _raise_after_backward(self, last):
        """Lets backward() raise errors, after DDP's own callback. DDP queues its callback after our
        first, so our first queues a second. Called with the last bucket: earlier buckets may
        belong to the inner backward pass of a checkpoint. False: this is no backward pass."""
        try:
            _queue_callback(functools.partial(self._before_ddp, last))
        except RuntimeError:
            return False
        return True

    def _before_ddp(self, last):
        """Raises the loss of a rank at once. DDP may now sum which parameters were used, over the
        script's group: with a rank missing that would wait for the script's timeout and name no
        rank."""
        last.wait()
        if self._worker.left or isinstance(self._worker.error, _GONE):
            self._raise()
        _queue_callback(self._after_ddp)

    def _after_ddp(self):
        """Raises errors. After the first backward pass, when scripts have their optimizer, looks
        whether it needs a warm-up."""
        self._raise()
        looked, self._looked = self._looked, True
        if not looked and self.engine.schedule.is_abrupt \
                and is_trained_adaptively(self.parameters[0]):
            self.engine.warn_of_low_density()

    def _raise(self):
        error, self._worker.error = self._worker.error, None
        if error is None:
            return
        if not self._refusing and (self._worker.left or isinstance(error, _GONE)):
            self._refuse_training(error)
        raise error

    def _refuse_training(self, error):
        """Raises the error again in later passes. This one was cut short, and DDP would fail with
        an assertion of its own, or wait for the rank that is gone."""
        def refuse(*_):
            raise error.with_traceback(None)

        def refuse_forward(*_):
            if torch.is_grad_enabled():
                refuse()
        self._refusing = [parameter.register_hook(refuse) for parameter in self.parameters
                          if parameter.requires_grad]
        if self._model() is not None:
            self._refusing.append(self._model().register_forward_pre_hook(refuse_forward))


def _queue_callback(callback):
    Variable._execution_engine.queue_callback(callback)


def _hook(state, bucket):
    return state.submit(bucket)


def _refuse_shrink(options):
    membership.refuse(options.pop("on_loss", None), "DistributedDataParallel",
                      ". Or train the plain model with thinwire.AdamW, SGD, DistributedOptimizer or "
                      "LocalSteps, which need the process group for the meeting only")


def attach(model, named, **options):
    """Makes the communication hook of a DistributedDataParallel. Collective.
    named: its trained() parameters. Options are those of Engine. Returns the state."""
    _refuse_shrink(options)
    if model in _compressed:
        raise StateError("the model is compressed already; call compress, or make an optimizer of "
                         "thinwire, once for each DistributedDataParallel")
    _check_dense(model.module)
    engine = Engine(named, model.process_group, **options)
    try:
        if may_be_unused(model):
            engine.transport.prepare_union(len(named))
        state = State(model, named, engine)
    except BaseException:       # perhaps on this rank only: the others must not wait for it
        engine.close()
        raise
    try:
        model.register_comm_hook(state, _hook)
    except RuntimeError as error:
        state.close()
        raise StateError(f"another communication hook is registered on the model: {error}")
    _compressed.add(model)
    return state


def _selects_as_a_whole(named, options):
    """The default of whole_model: it gives the better model, where it can be had."""
    elements = sum(parameter.numel() for _, parameter in named)
    return not options.get("bucket") and elements <= LARGEST


def _is_single():
    return dist.get_world_size() == 1 if dist.is_initialized() else \
        int(os.environ.get("WORLD_SIZE", "1")) == 1


@shown
def compress(model: torch.nn.Module, scheme: str = "oktopk",
             density: Union[float, Callable[[int], float], None] = None,
             **options: "Unpack[CompressOptions]") -> Union[State, fsdp.ShardedState, Single]:
    """Makes DistributedDataParallel exchange only the gradient values that matter. Collective.

    model           a DistributedDataParallel, or a model that fully_shard() has sharded over a mesh
                    with a replicate and a shard dimension (HSDP). In a job of one process also a
                    plain model: nothing is exchanged then
    scheme          one of thinwire.schemes()
    density, or k   fraction, or number, of the model's values that a rank selects in a step; 0.01.
                    density may be a function of the step
    count           "of_scheme", or "per_rank": the upper bound of bytes is topka's at this density;
                    oktopk sends about 60 % of them
    steps           of the whole run: density falls to its value during the first fifth
    warmup_steps    says that directly; warmup_density (0.25) is where it begins, warmup how it
                    falls: "exponential", "linear" or "cosine"
    whole_model     True: the k largest values of the model. False: the same share of each
                    parameter. Default True, but not with unused parameters, nor with bucket
    select, exchange, wire
                    replace the scheme's selection method, its exchange, the wire format ("raw")
    result          "mean" or "sum" over ranks; with exchange allgather (thinwire.schemes() lists
                    each scheme's exchange) also "mean_of_senders" of each entry
    checksum        True: messages carry a checksum
    timeout         seconds to wait for other ranks, then an error names them. Default: as long as
                    the process group waits
    on_loss         "raise", or "shrink": without DistributedDataParallel the other ranks go on
                    when one dies (docs/python.md)
    grad_scaler     the GradScaler of mixed precision
    momentum        momentum before selection, as in Deep Gradient Compression
    clip_norm       limits the norm of each rank's gradient before selection
    feedback        True: what was not sent is added to the next gradient. False: it is dropped
    bucket          elements that travel together; not with whole_model or grad_scaler
    threads         that select on the CPU; default torch's
    global_, seed, reuse_period, reuse_low, reuse_high, reuse_nudge, gaussian_rounds, dgc_sample,
    decay           as in thinwire.h

    Returns the state: stats(), summary(), residual_norm(), state_dict(), gather_state_dict(),
    load_state_dict(), close(). docs/python.md is the manual.
    """
    check(options)
    if isinstance(model, DistributedDataParallel):
        named = trained(model)
        if options.get("whole_model") is None:
            options["whole_model"] = (not may_be_unused(model)
                                      and _selects_as_a_whole(named, options))
        return attach(model, named, scheme=scheme, density=density, **options)
    if fsdp.is_sharded(model):
        return fsdp.attach(model, scheme=scheme, density=density, **options)
    if isinstance(model, torch.nn.Module) and _is_single():
        _refuse_shrink(options)
        named, chosen = _trained(model.named_parameters()), options.pop("whole_model", None)
        forms = [_selects_as_a_whole(named, options), False] if chosen is None else [chosen]
        return Single(named, forms, scheme=scheme, density=density, **options)
    raise TypeError(f"model: {type(model).__name__}; accepted is DistributedDataParallel. Without "
                    "it, use thinwire.DistributedOptimizer")
