"""broadcast_parameters(): weights that are equal on all ranks, for models without
DistributedDataParallel, which does the same when it wraps a model."""
from typing import Iterable, Tuple, Union

import torch
import torch.distributed as dist

from .process_group import ranks_of
from .states import device_of


def _tensors(model):
    if isinstance(model, torch.nn.Module):
        return [*model.parameters(), *model.buffers()]
    return [one[1] if isinstance(one, tuple) else one for one in model]


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
    source = ranks_of(process_group)[root]
    for tensor in _tensors(model):
        there = tensor.detach().to(device_of(process_group, tensor.device)).contiguous()
        dist.broadcast(there, source, group=process_group)
        if there.data_ptr() != tensor.data_ptr():
            tensor.copy_(there)
