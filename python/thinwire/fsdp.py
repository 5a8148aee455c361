"""compress() for models that fully_shard() has sharded over a mesh of two dimensions (HSDP).

    inside a shard group     gradients are summed densely: FSDP's reduce-scatter
    between replicas         each rank's shard is summed sparsely: here, in FSDP's all-reduce hook

fully_shard() groups parameters by module. The shard of a group is one tensor of the exchange, so
residuals take n / shards of memory. Groups are exchanged one after the other, in the order of the
backward pass, which is the same on all ranks.

A model that is sharded over all ranks has no replicas, so there is nothing to exchange: refused.
"""
import weakref
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist
from torch.autograd import Variable

from . import membership
from .engine import Engine
from .errors import Error, NumberError, ParamError, StateError

_INSTEAD = ("train it without thinwire, or shard it over a mesh with a replicate dimension: "
            "fully_shard(model, mesh=init_device_mesh(type, (replicas, shards), "
            "mesh_dim_names=('replicate', 'shard')))")

_AS_FLOATS = {torch.float32, torch.float16, torch.bfloat16}


def is_sharded(model):
    """Whether FSDP, old or new, has a part in the model."""
    return any(hasattr(part, "_get_fsdp_state") or type(part).__name__ == "FullyShardedDataParallel"
               for part in model.modules()) if isinstance(model, torch.nn.Module) else False


class _Shard:
    """The shard of a group of parameters, as Engine looks at a parameter. FSDP may reduce in
    another type than the parameters': sums are always made in float32."""

    def __init__(self, group):
        trained = [one for one in group.fsdp_params if one.sharded_param.requires_grad]
        self.elements = sum(one.padded_sharded_param_size.numel() for one in trained)
        self.dtype = next((one.sharded_param.dtype for one in trained
                           if one.sharded_param.dtype not in _AS_FLOATS), torch.float32)
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
        if _mesh_of(group) != _mesh_of(groups[0][1]):
            raise ParamError(f"module '{name}' is sharded over another mesh than module "
                             f"'{groups[0][0]}'; accepted is one mesh for the whole model")


def _mesh_of(group):
    info = group.mesh_info
    return info.mesh.mesh.tolist(), info.replicate_mesh_dim, info.shard_mesh_dim


class ShardedState:
    """Returned by compress() for an HSDP model."""

    def __init__(self, engine, groups, shard, shards, sums):
        self.engine, self.shard, self.shards = engine, shard, shards
        self._sums = sums       # over replicas, not means
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
            if getattr(group, "gradient_divide_factor", None) is not None and not self._sums:
                raise StateError("set_gradient_divide_factor(): replicas are averaged; pass "
                                 "result='sum' to compress(), and the factor counts for all ranks")
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
            sums = gradient.float()     # itself, unless it has another type
            self._begin(number, sums)
            try:
                engine.finish()
                if sums is not gradient:
                    gradient.copy_(sums)
            except Error as error:      # raised after the pass: others of the shard wait there
                self._error = self._error or error
        if engine.stream is not None:
            torch.cuda.current_stream(engine.device).wait_stream(engine.stream)
        self._done.add(number)

    def _begin(self, number, gradient):
        if not self._waits:     # FSDP's own callback is queued before, so it is run before
            self._waits = True
            Variable._execution_engine.queue_callback(self._after_backward)
        try:
            if gradient.numel() != self.engine.sizes[number]:
                raise ParamError(f"module '{self.engine.names[number]}': some of its parameters "
                                 "got no gradient; shard such modules apart, or freeze what is not "
                                 "trained")
            self.engine.begin(number, gradient)
        except Exception:       # perhaps on this rank only: the others must not wait for it
            self.engine.transport.abort()
            raise

    def _end_step(self):
        self._done.clear()
        self.engine.end_step()

    def _drop_step(self):
        self._done.clear()
        self.engine.begin_step()

    def _forget(self, *_):
        """Before a forward pass: a backward pass that failed has not run its callback."""
        if self._waits:
            self._waits, self._error = False, None
            self._drop_step()

    def _after_backward(self):
        """Raises what refused a group, now that FSDP has finished its pass. NaN may be in one shard
        alone: all shards raise, or some would step without the others."""
        self._waits, error, self._error = False, self._error, None
        failed = torch.tensor([float(error is not None)], device=self.engine.device)
        dist.all_reduce(failed, group=self._shard_group)
        if failed.item() > 0:
            self._drop_step()
            raise error or NumberError("another shard of this replica holds NaN or infinity; the "
                                       "rank that has it says where")
        if len(self._done) == self._groups:
            self._end_step()

    def stats(self) -> Dict[str, float]:
        """Bytes, counts and times between replicas: totals, and the last step, as last_..."""
        return self.engine.stats()

    def summary(self) -> str:
        """One line."""
        return f"{self.engine.summary()}; shard {self.shard} of {self.shards}"

    def residual_norm(self) -> float:
        """The 2-norm of this rank's residual. Copies it to the host."""
        return self.engine.residual_norm()

    def state_dict(self) -> Dict[str, Any]:
        """The residuals of this rank's shard: every rank has its own. For torch.save, or under one
        key of torch.distributed.checkpoint."""
        return {f"shard {self.shard} of {self.shards}": self.engine.state_dict()}

    def gather_state_dict(self, dst: Optional[int] = None) -> Optional[Dict[str, Any]]:
        """The states of all replicas of this shard. Collective; each shard has its own."""
        gathered = self.engine.gather_state_dict(dst)
        return gathered and {f"shard {self.shard} of {self.shards}": gathered}

    def load_state_dict(self, saved: Any, allow_missing: bool = False) -> None:
        """Continues from a state of the same shard: this rank's, the gathered one, or under its name
        the list of those of all replicas. Collective. The number of replicas may be another, and
        states may be missing with allow_missing."""
        mine = f"shard {self.shard} of {self.shards}"
        if not isinstance(saved, dict) or mine not in saved:
            self.engine.refuse_state()
            found = ", ".join(map(str, saved)) if isinstance(saved, dict) else repr(saved)
            raise ParamError(f"expected a state of {mine}; this is: {found}")
        self.engine.load_state_dict(saved[mine], allow_missing)

    def __repr__(self):
        return f"<thinwire.ShardedState: {self.summary()}>"

    def close(self) -> None:
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
    membership.refuse(options.pop("on_loss", None), "HSDP")
    groups = _groups(model)
    _check(model, groups)
    if whole_model or grad_scaler is not None:
        raise ParamError("whole_model, grad_scaler: not with HSDP, whose groups of parameters are "
                         "exchanged one by one")
    groups = [(name, group) for name, group in groups if _Shard(group).elements > 0]
    if not groups:
        raise ParamError("no parameter requires a gradient: there is nothing to compress")
    groups.reverse()        # as the backward pass reaches them
    mesh = groups[0][1].mesh_info
    engine = Engine([(name, _Shard(group)) for name, group in groups],
                    mesh.replicate_process_group, **options)
    state = ShardedState(engine, groups, mesh.shard_mesh_rank, mesh.shard_mesh_size,
                         options.get("result") == "sum")
    model.register_forward_pre_hook(state._forget)
    return state
