"""Data parallelism by torch's DistributedDataParallel (Li et al., 2020): each rank has the whole model."""

# no annotations from __future__: torch compares that of ``bucket`` with its class
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from polyhead.train.loss_module import LossModule


def replicate_weights(root: LossModule, group: dist.ProcessGroup | None) -> DistributedDataParallel:
    """The module to call instead of ``root``, on ranks that have the same weights.

    Gradients of its backward pass are sums over the ranks of ``group`` (None: all), reduced in buckets during
    the pass. The gradient of a weight that no rank used is None, as in a single process.
    """
    # layers are compiled one by one; torch would cut each where a bucket ends, and refuses flex attention
    torch._dynamo.config.optimize_ddp = False
    replica = DistributedDataParallel(
        root,
        process_group=group,
        init_sync=False,  # weights are the same, and a wait for the other ranks belongs elsewhere
        forward_sync_buffers=False,
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )
    replica.register_comm_hook(group, sum_bucket)
    return replica


# DistributedDataParallel compares these annotations with the types, so that they cannot be strings
def sum_bucket(
    group: dist.ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Start the sum of a bucket over ranks; torch's own hook takes the mean."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
