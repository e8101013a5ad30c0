"""A process group for weights between trainer rank 0 (the source) and engine workers; touches no default group of either side.

Both ends know the tensors beforehand (`hf_layout.hf_tensors`), so nothing but raw tensors travels.
"""

from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from libra_core.errors import ResourceError

SOURCE_RANK = 0


class BroadcastGroup:
    """One membership; every call is collective over all its ranks and blocks until all take part."""

    def __init__(self, group: dist.ProcessGroup, store: dist.Store) -> None:
        self._group = group
        self._store = store  # the source's store serves the others: it must live as long as the group

    def broadcast(self, tensor: Tensor) -> None:
        """Send `tensor` from the source, or overwrite it with the source's; contiguous, same shape and dtype on all ranks."""
        options = dist.BroadcastOptions()
        options.rootRank = SOURCE_RANK
        options.rootTensor = 0
        self._group.broadcast([tensor], options).wait()  # unbounded: the group has its timeout


def join_group(host: str, port: int, rank: int, world_size: int, timeout_s: float) -> BroadcastGroup:
    """Join as `rank` of `world_size`; rank 0 listens on `port`. NCCL where CUDA is present (not run), else gloo.

    Raises:
        ResourceError: when the port is in use or the others do not come within `timeout_s`.
    """
    timeout = timedelta(seconds=timeout_s)
    try:
        store = dist.TCPStore(host, port, world_size, is_master=rank == SOURCE_RANK, timeout=timeout)
        prefixed = dist.PrefixStore("libra-weights", store)
        if torch.cuda.is_available():
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            group: dist.ProcessGroup = dist.ProcessGroupNCCL(prefixed, rank, world_size, options)
        else:
            group = dist.ProcessGroupGloo(prefixed, rank, world_size, timeout)
    except (RuntimeError, dist.DistError) as error:
        raise ResourceError(
            f"weight broadcast rank {rank} of {world_size} could not join {host}:{port} within {timeout_s:.0f} s "
            f"({str(error).splitlines()[0]}); is the port in use, or an engine missing?"
        ) from error
    return BroadcastGroup(group, store)


def send_all(group: BroadcastGroup, tensors: Iterable[Tensor]) -> None:
    """From the source. The tensors are drawn to the end in any case: other ranks may take part in making them.

    Raises:
        ResourceError: a rank is gone; the group is of no use any more.
    """
    broken: RuntimeError | None = None
    for tensor in tensors:
        if broken is not None:
            continue
        whole = tensor.contiguous()
        try:
            group.broadcast(whole)
        except RuntimeError as error:
            broken = error
    if broken is not None:
        raise ResourceError(f"the broadcast of weights broke: {str(broken).splitlines()[0]}") from broken
