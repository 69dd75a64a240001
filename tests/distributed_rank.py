"""One rank of two: loss and gradient of every method on half of a batch, compared with the whole batch on one process.

    python tests/distributed_rank.py RANK FILE

prints a line a method: the name, the largest difference of the loss (averaged over ranks) and of the gradient. Run
without the checks of shapes of the test suite, so that both processes start quickly.
"""

import sys

import torch
import torch.distributed as dist
from loss_oracles import sizes
from torch.nn.parallel import DistributedDataParallel

from calibrant.losses.criterion import Criterion
from calibrant.registry import LOSSES, PENALTIES

N, K, D, TRAINED = 24, 4, 6, 50


def data():
    g = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=g), torch.randint(K, (N,), generator=g), torch.randperm(TRAINED, generator=g)[:N]


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(D, 8), torch.nn.Tanh(), torch.nn.Linear(8, K)).double()


def criteria():
    made = {f"loss {name}": lambda name=name: Criterion(name, sizes(name, K, TRAINED)) for name in LOSSES}
    made |= {f"penalty {name}": lambda name=name: Criterion("focal", penalty=name, weight=2.0) for name in PENALTIES}
    made["penalty mmce, sum"] = lambda: Criterion("cross_entropy", penalty="mmce", reduction="sum")
    made["loss seca, sum"] = lambda: Criterion("seca", reduction="sum")
    made["loss au, epoch"] = lambda: Criterion("au", {"histogram": "epoch", "nu": 0.1})
    return made


def steps(model, criterion, parts, whole):
    """Take one step of each kind: a batch, an end of epoch, a second batch; return the second loss."""
    x, y, rows = parts
    criterion.double()
    for _ in range(2):
        model.zero_grad()
        loss = criterion(model(x.double()), y, rows)
        loss.backward()
        with torch.no_grad():
            criterion.epoch_end((model(whole[0].double()), whole[1]))
    return loss.detach()


def main(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    x, y, rows = data()
    for share in ((12, 12), (9, 15), (24, 0)):
        cut = slice(0, share[0]) if rank == 0 else slice(share[0], N)
        for name, make in criteria().items():
            criterion = make()
            if share != (12, 12) and not (criterion._facts.get("joint") or criterion.penalties):
                continue  # a loss of single rows alone is averaged rank by rank, which is exact for equal shares only
            model = DistributedDataParallel(network())
            part = x[cut], y[cut], rows[cut]
            loss = steps(model, criterion, part, (x[cut], y[cut]))
            dist.all_reduce(loss)
            if rank == 0:
                compare(f"{name} {share}", loss / 2, model.module)
    dist.barrier()
    dist.destroy_process_group()


def compare(name, loss, model):
    """Run the whole batch in this process alone and print how far the ranks were from it."""
    x, y, rows = data()
    single = network()
    criterion = criteria()[name.rpartition(" (")[0]]()
    criterion.across_ranks = False
    if hasattr(criterion.loss, "across_ranks"):
        criterion.loss.across_ranks = False
    expected = steps(single, criterion, (x, y, rows), (x, y))
    if criterion.reduction == "sum":
        expected = expected / 2  # each rank sums its half
        for p in single.parameters():
            p.grad /= 2
    far = max(
        float((a.grad - b.grad).abs().max()) for a, b in zip(single.parameters(), model.parameters(), strict=True)
    )
    print(f"{name}: {float((loss - expected).abs()):.1e} {far:.1e}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
