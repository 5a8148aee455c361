"""broadcast_parameters(): weights that are equal on all ranks, for models without
DistributedDataParallel, which does the same when it wraps a model. Parameters that FSDP has sharded
are refused: each rank has a part of its own."""
from typing import Iterable, Tuple, Union

import torch
import torch.distributed as dist

from .errors import ParamError
from .process_group import ranks_of
from .states import device_of

# fully_shard() and DTensor; FSDP1's flat parameters; with use_orig_params those that it took in
_SHARDED = ("placements", "_sharded_size", "_fsdp_flattened")

_PART = 1 << 30     # bytes: MPI counts them in an int


def check_whole(name, parameter):
    if any(hasattr(parameter, one) for one in _SHARDED):
        raise ParamError(f"parameter '{name}' is sharded (FSDP, DTensor); thinwire.compress() "
                         "takes a model that is sharded and has replicas (HSDP), beside an "
                         "optimizer of torch. Train a model without replicas without thinwire")


def _tensors(model):
    """(name, tensor) of each."""
    if isinstance(model, torch.nn.Module):
        return [*model.named_parameters(), *model.named_buffers()]
    return [one if isinstance(one, tuple) else (f"parameter {number}", one)
            for number, one in enumerate(model)]


@torch.no_grad()
def broadcast_parameters(
        model: Union[torch.nn.Module, Iterable[torch.Tensor], Iterable[Tuple[str, torch.Tensor]]],
        root: int = 0, process_group=None) -> None:
    """Gives all ranks the root's parameters and buffers. Collective; does nothing in a job of one
    process.

    model: a module, or its parameters() or named_parameters(). root: a rank of the process group.
    """
    if not dist.is_initialized() or dist.get_world_size(process_group) == 1:
        return
    source, named = ranks_of(process_group)[root], _tensors(model)
    for name, tensor in named:
        check_whole(name, tensor)
    for _, tensor in named:
        there = tensor.detach().to(device_of(process_group, tensor.device)).contiguous()
        for part in there.view(-1).view(torch.uint8).split(_PART):  # gloo does not know all types
            dist.broadcast(part, source, group=process_group)
        if there.data_ptr() != tensor.data_ptr():
            tensor.copy_(there)
