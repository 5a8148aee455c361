"""compress() for models that fully_shard() has sharded over a mesh of two dimensions (HSDP).

    inside a shard group     gradients are summed densely: FSDP's reduce-scatter
    between replicas         each rank's shard is summed sparsely: here, in FSDP's all-reduce hook

fully_shard() groups parameters by module. The shard of a group is one tensor of the exchange, so
residuals take n / shards of memory. Groups are exchanged one after the other, in the order of the
backward pass, which is the same on all ranks.

A model that is sharded over all ranks has no replicas, so there is nothing to exchange: refused.
"""
import weakref

import torch
import torch.distributed as dist
from torch.autograd import Variable

from .engine import Engine
from .errors import Error, NumberError, ParamError, StateError

_INSTEAD = ("train it without thinwire, or shard it over a mesh with a replicate dimension: "
            "fully_shard(model, mesh=init_device_mesh(type, (replicas, shards), "
            "mesh_dim_names=('replicate', 'shard')))")


def is_sharded(model):
    """Whether FSDP, old or new, has a part in the model."""
    return any(hasattr(part, "_get_fsdp_state") or type(part).__name__ == "FullyShardedDataParallel"
               for part in model.modules()) if isinstance(model, torch.nn.Module) else False


class _Shard:
    """The shard of a group of parameters, as Engine looks at a parameter."""

    def __init__(self, group):
        trained = [one for one in group.fsdp_params if one.sharded_param.requires_grad]
        self.elements = sum(one.padded_sharded_param_size.numel() for one in trained)
        policy = getattr(trained[0], "mp_policy", None) if trained else None
        self.dtype = getattr(policy, "reduce_dtype", None) or \
            (trained[0].sharded_param.dtype if trained else None)
        self.device = group.device

    def numel(self):
        return self.elements


def _groups(model):
    """The groups of parameters of an FSDP model, [(name, group)], in the order of the model."""
    found = []
    for name, part in model.named_modules():
        if not hasattr(part, "_get_fsdp_state"):
            continue
        state = part._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:      # torch 2.9 and older
            groups = [state._fsdp_param_group] if state._fsdp_param_group else []
        if len(groups) > 1:
            raise ParamError(f"module '{name}' has parameters on several meshes; accepted is one")
        found += [(name or "the model", one) for one in groups]
    return found


def _check(model, groups):
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise ParamError("model: FullyShardedDataParallel (FSDP1) has no hook between its sums "
                         "inside of a shard group and those of replicas; use fully_shard() over a "
                         "mesh with a replicate dimension, or train it without thinwire")
    if not groups or not hasattr(groups[0][1], "_all_reduce_hook"):
        raise ParamError("model: this version of torch has no all-reduce hook in fully_shard()")
    for name, group in groups:
        if group._all_reduce_hook is not None:
            raise StateError(f"module '{name}' has an all-reduce hook already")
        if not group._is_hsdp:
            raise ParamError(f"module '{name}' is sharded over all ranks: without replicas there "
                             "is nothing to exchange; " + _INSTEAD)


class ShardedState:
    """Returned by compress() for an HSDP model."""

    def __init__(self, engine, groups, shard, shards):
        self.engine, self.shard, self.shards = engine, shard, shards
        self._done, self._groups = set(), len(groups)       # _done: groups, in this step
        self._shard_group = groups[0][1].mesh_info.shard_process_group
        self._error, self._waits = None, False      # _waits: a callback is queued
        for number, (_, group) in enumerate(groups):
            _replace_sum(group, self._hook(number, group))
        self._finalizer = weakref.finalize(self, engine.close)

    def _hook(self, number, group):
        def hook(gradient):
            if not group.all_reduce_grads:
                raise StateError("set_requires_all_reduce(False): accumulate gradients with "
                                 "set_requires_gradient_sync(False)")
            self._exchange(number, gradient)
        return hook

    def _exchange(self, number, gradient):
        engine = self.engine
        if number in self._done:        # the step before has left other groups out
            self._end_step()
        if self._error is not None and not isinstance(self._error, NumberError):
            return                      # a rank is lost: there is nobody to exchange with
        if engine.stream is not None:
            engine.stream.wait_stream(torch.cuda.current_stream(engine.device))
        with torch.cuda.stream(engine.stream):      # None: no effect
            self._begin(number, gradient)
            try:
                engine.finish()
            except Error as error:      # raised after the pass: others of the shard wait there
                self._error = self._error or error
        if engine.stream is not None:
            torch.cuda.current_stream(engine.device).wait_stream(engine.stream)
        self._done.add(number)
        if len(self._done) == self._groups:
            self._end_step()

    def _begin(self, number, gradient):
        if not self._waits:     # FSDP's own callback is queued before, so it is run before
            self._waits = True
            Variable._execution_engine.queue_callback(self._after_backward)
        try:
            self.engine.begin(number, gradient)
        except Exception:       # perhaps on this rank only: the others must not wait for it
            self.engine.transport.abort()
            raise

    def _end_step(self):
        self._done.clear()
        self.engine.end_step(good=self._error is None)

    def _forget(self, *_):
        """Before a forward pass: a backward pass that failed has not run its callback."""
        self._waits, self._error = False, None

    def _after_backward(self):
        """Raises what refused a group, now that FSDP has finished its pass. NaN may be in one shard
        alone: all shards raise, or some would step without the others."""
        self._waits, error, self._error = False, self._error, None
        failed = torch.tensor([float(error is not None)], device=self.engine.device)
        dist.all_reduce(failed, group=self._shard_group)
        if failed.item() > 0:
            raise error or NumberError("another shard of this replica holds NaN or infinity; the "
                                       "rank that has it says where")

    def stats(self):
        """Bytes, counts and times between replicas: totals, and the last step, as last_..."""
        return self.engine.stats()

    def summary(self):
        """One line."""
        return f"{self.engine.summary()}; shard {self.shard} of {self.shards}"

    def residual_norm(self):
        """The 2-norm of this rank's residual. Copies it to the host."""
        return self.engine.residual_norm()

    def state_dict(self):
        """The residuals of this rank's shard: every rank has its own. For torch.save, or under one
        key of torch.distributed.checkpoint."""
        return {f"shard {self.shard} of {self.shards}": self.engine.state_dict()}

    def gather_state_dict(self, dst=None):
        """The states of all replicas of this shard. Collective; each shard has its own."""
        gathered = self.engine.gather_state_dict(dst)
        return gathered and {f"shard {self.shard} of {self.shards}": gathered}

    def load_state_dict(self, saved):
        """Continues from a state of the same shard: this rank's, or the gathered one. Collective.
        The number of replicas may be another."""
        mine = f"shard {self.shard} of {self.shards}"
        if not isinstance(saved, dict) or mine not in saved:
            self.engine.refuse_state()
            found = ", ".join(map(str, saved)) if isinstance(saved, dict) else repr(saved)
            raise ParamError(f"expected a state of {mine}; this is: {found}")
        self.engine.load_state_dict(saved[mine])

    def __repr__(self):
        return f"<thinwire.ShardedState: {self.summary()}>"

    def close(self):
        """Frees everything now, not when the model is freed."""
        self._finalizer()


def _replace_sum(group, hook):
    """Puts the hook in place of the dense sum over replicas: FSDP makes that sum for groups whose
    mesh has a replicate dimension. The parameters keep their mesh."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
    mesh = group.mesh_info
    group.mesh_info = FSDPMeshInfo(mesh.mesh, shard_mesh_dim=mesh.shard_mesh_dim)
    group._all_reduce_hook = hook


def attach(model, whole_model=False, grad_scaler=None, **options):
    """compress() of an HSDP model. Collective. Returns the state."""
    groups = _groups(model)
    _check(model, groups)
    if whole_model or grad_scaler is not None:
        raise ParamError("whole_model, grad_scaler: not with HSDP, whose groups of parameters are "
                         "exchanged one by one")
    groups = [(name, group) for name, group in groups if _Shard(group).elements > 0]
    groups.reverse()        # as the backward pass reaches them
    mesh = groups[0][1].mesh_info
    engine = Engine([(name, _Shard(group)) for name, group in groups],
                    mesh.replicate_process_group, **options)
    state = ShardedState(engine, groups, mesh.shard_mesh_rank, mesh.shard_mesh_size)
    model.register_forward_pre_hook(state._forget)
    return state
