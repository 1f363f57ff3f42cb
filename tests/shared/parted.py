"""A small model on two processes, each of which holds a part of every tensor: stored, resumed, and made to fail.

`python parted.py RANK FOLDER` is one of the two; they meet at a file in the folder. Tests start it, and use the model.
"""

import sys

import torch
from torch import nn

from regard.storage import weights
from regard.training import snapshot as shards
from regard.training.checkpoints import CheckpointManager
from regard.training.snapshot import Snapshot, local_shard, optimizer_state, optimizer_templates, restore_optimizer


def made(seed, prepare=lambda model: None):
    """Of sizes that two does not divide: the first process has 3 of 5 rows, and all of what has one row."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7), nn.Linear(7, 1))
    prepare(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


def steps(model, optimiser, numbers):
    for number in numbers:
        torch.manual_seed(number)
        model(torch.randn(4, 3)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()


def parts(model, optimiser):
    return {"model": model.state_dict(), "optimiser": optimizer_state(optimiser, dict(model.named_parameters()))}


def joined(tables):
    """All tensors, whole."""
    return {f"{kind}.{name}": tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for kind, tensors in tables.items() for name, tensor in tensors.items()}


class Pair:
    """One of the two processes."""

    def __init__(self, rank, folder):
        import torch.distributed as dist
        from torch.distributed.tensor import init_device_mesh

        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
        self.rank, self.folder, self.barrier = rank, folder, dist.barrier
        self.mesh = init_device_mesh("cpu", (2,))
        self.checkpoints = CheckpointManager(f"{folder}/two", keep=2)

    def share(self, model):
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=self.mesh)

    def save(self, step, model, optimiser):
        snapshot = Snapshot.of(parts(model, optimiser), {"step": step})
        return self.checkpoints.save(step, snapshot, rank=self.rank, processes=2, barrier=self.barrier)

    def resumed(self, snapshot):
        model, optimiser = made(7, self.share)
        named = dict(model.named_parameters())
        model.load_state_dict(snapshot.under("model", like=model.state_dict()))
        restore_optimizer(optimiser, named, snapshot.under("optimiser", like=optimizer_templates(optimiser, named)))
        return model, optimiser

    def write(self, name, model, optimiser):
        tensors = joined(parts(model, optimiser))
        if self.rank == 0:
            weights.write_tensors(f"{self.folder}/{name}.safetensors", tensors)


def two_store_and_two_resume(pair):
    one = made(1, pair.share)
    steps(*one, range(3))
    assert pair.save(3, *one) == []
    same = pair.resumed(pair.checkpoints.at(3).snapshot)
    for model, optimiser in (one, same):
        steps(model, optimiser, range(3, 6))
    left, right = (Snapshot.of(parts(*each), {}).tensors for each in (one, same))
    assert all(torch.equal(local_shard(left[name]).tensor, local_shard(right[name]).tensor)
               for name in left if ".step." not in name)
    pair.write("two", *one)


def two_resume_what_one_has_stored(pair):
    model, optimiser = pair.resumed(CheckpointManager(f"{pair.folder}/one", keep=2).load().snapshot)
    steps(model, optimiser, range(3, 6))
    pair.write("one", model, optimiser)


def both_have_the_whole(pair):
    from torch.distributed.tensor import Replicate, distribute_tensor

    copies = {"a": made(3)[0][0].weight, "b": distribute_tensor(torch.ones(3), pair.mesh, [Replicate()])}
    replicated = CheckpointManager(f"{pair.folder}/replicated", keep=1)
    replicated.save(1, Snapshot.of({"model": copies}, {}), rank=pair.rank, processes=2, barrier=pair.barrier)
    found = replicated.load().snapshot.like("model.b", copies["b"])
    assert found.placements == (Replicate(),)
    assert torch.equal(found.to_local(), torch.ones(3))


def one_fails(pair):
    """One that cannot write, and one that cannot put in place: no new checkpoint, and nobody waits for ever."""
    def failing(*_):
        raise OSError(28, "No space left on device")

    state = made(1, pair.share)
    for owner, name, rank in ((shards, "write_shards", 0), (shards, "write_shards", 1), (CheckpointManager, "_put", 0)):
        works = getattr(owner, name)
        if pair.rank == rank:
            setattr(owner, name, failing)
        try:
            pair.save(4, *state)
        except (OSError, ValueError) as error:
            print(f"{name} fails on {rank}: {error}", flush=True)
        setattr(owner, name, works)
        assert pair.checkpoints.load().step == 3
        pair.barrier()  # both have looked
    assert pair.save(4, *state) == []
    assert pair.checkpoints.load().step == 4


def other_ways_of_sharing(pair):
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    along = local_shard(distribute_tensor(torch.arange(10).view(2, 5), pair.mesh, [Shard(1)]))
    assert (along.shape, along.offsets) == ((2, 5), (0, 3 * pair.rank))
    try:
        local_shard(distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2, 1)), [Shard(0), Shard(1)]))
    except ValueError as error:
        print(f"other: {error}", flush=True)


if __name__ == "__main__":
    import torch.distributed

    process = Pair(int(sys.argv[1]), sys.argv[2])
    for work in (two_store_and_two_resume, two_resume_what_one_has_stored, both_have_the_whole, one_fails,
                 other_ways_of_sharing):
        work(process)
    print("done", flush=True)
    torch.distributed.destroy_process_group()
