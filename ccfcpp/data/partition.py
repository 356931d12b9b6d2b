"""How images are divided among clients."""

import math

import torch
from torch import Tensor

from ccfcpp.errors import UsageError
from ccfcpp.randomness import Randomness


def iid_partition(samples: int, clients: int, randomness: Randomness) -> list[Tensor]:
    """Shuffle once and deal out equal shares.

    Args:
        samples: Number of samples.
        clients: Number of clients.
        randomness: The run's source of random numbers.

    Returns:
        For each client the int64 indices of its samples; sizes differ by one at most.

    Raises:
        UsageError: There are more clients than samples.
    """
    _check_clients(samples, clients)
    order = torch.randperm(samples, generator=randomness.generator("partition"))
    return list(order.tensor_split(clients))


def skewed_partition(
    labels: Tensor, classes: int, clients: int, p: float, randomness: Randomness
) -> list[Tensor]:
    """The p-skew of Section III-B of the CCFC++ paper, index by index as in the authors' code.

    With N samples and M clients, client i's own class is i mod C. For p < 1 it takes the first
    round(N/M·p) samples of its class in data order, then round(N/M·(1−p)) samples of what all
    clients left over, shuffled once. For p = 1 it takes all samples of its class. Clients with the
    same class divide it between them, in order. With as many clients as classes this is the
    published rule.

    So a client's own class makes up at least the share p of its samples, up to rounding: of that
    class it may hold half a sample less than p of all. Where the class runs short, which it does at
    no published setting, the client takes fewer others, and the share is strictly kept.

    Args:
        labels: int64 class of each sample, shape (samples,), each in [0, ``classes``).
        classes: Number of classes C.
        clients: Number of clients M.
        p: Degree of skew, from 0 (shares at random) to 1 (one class a client).
        randomness: The run's source of random numbers.

    Returns:
        For each client the int64 indices of its samples, each sample with one client at most.

    Raises:
        UsageError: p lies outside [0, 1], or there are more clients than samples.
    """
    if not 0 <= p <= 1:
        raise UsageError(f"p = {p:g} is not a degree of skew: give a number from 0 to 1")
    _check_clients(len(labels), clients)
    labels = labels.cpu()
    share = len(labels) / clients
    wanted = round(share * p) if p < 1 else len(labels)
    own = [_own_samples(labels, classes, clients, client, wanted) for client in range(clients)]
    if p == 1:
        return own
    left_over = torch.ones(len(labels), dtype=torch.bool)
    left_over[torch.cat(own)] = False
    pool = left_over.nonzero().flatten()
    pool = pool[torch.randperm(len(pool), generator=randomness.generator("partition"))]
    counts = [
        round(share * (1 - p)) if len(mine) == wanted else _others_that_fit(len(mine), p)
        for mine in own
    ]
    others = torch.split(pool[: sum(counts)], _fit(counts, len(pool)))
    return [torch.cat(parts) for parts in zip(own, others, strict=True)]


def _own_samples(labels: Tensor, classes: int, clients: int, client: int, wanted: int) -> Tensor:
    """The client's part of its own class: up to ``wanted`` samples, in data order."""
    members = (labels == client % classes).nonzero().flatten()
    sharers = len(range(client % classes, clients, classes))
    if sharers * wanted <= len(members):
        start = client // classes * wanted
        return members[start : start + wanted]
    return members.tensor_split(sharers)[client // classes][:wanted]


def _others_that_fit(own: int, p: float) -> int:
    """The most samples from elsewhere that leave ``own`` samples at the share ``p`` > 0."""
    # The small addend keeps an exact quotient such as 5250·(0.25/0.75) from falling just below.
    return math.floor(own * (1 - p) / p + 1e-9)


def _fit(counts: list[int], available: int) -> list[int]:
    """Cut the counts, from the last on, to what is available."""
    fitted = []
    for count in counts:
        fitted.append(min(count, available))
        available -= fitted[-1]
    return fitted


def owner_partition(owners: Tensor, clients: int) -> list[Tensor]:
    """Each folder is a client: client i holds what lies in folder i.

    Args:
        owners: int64 folder of each sample, shape (samples,).
        clients: Number of folders.

    Returns:
        For each client the int64 indices of its samples, in data order.
    """
    return [(owners.cpu() == client).nonzero().flatten() for client in range(clients)]


def _check_clients(samples: int, clients: int) -> None:
    if clients > samples:
        raise UsageError(
            f"clients = {clients} is more than the {samples} images: give at most {samples} clients"
        )
