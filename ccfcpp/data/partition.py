"""Partitions of images among clients.

Each function returns the int64 indices of every client's samples, each sample with one client at
most. ``labels`` are int64 classes in [0, ``classes``), of shape (samples,).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness


def iid_partition(samples: int, clients: int, randomness: Randomness) -> list[Tensor]:
    """Shuffle the samples and split them equally among clients; sizes differ by one at most.

    Raises:
        UsageError: There are more clients than samples.
    """
    check_clients(samples, clients)
    order = torch.randperm(samples, generator=randomness.generator("partition"))
    return list(order.tensor_split(clients))


def skewed_partition(
    labels: Tensor, classes: int, clients: int, p: float, randomness: Randomness
) -> list[Tensor]:
    """Partition with the degree of skew p of the CCFC++ paper, Section III-B, as in its code.

    With N samples of C classes and M clients, client i's own class is i mod C. The degree of skew p
    runs from 0 (random shares) to 1 (one class per client). For p < 1 a client takes the first
    round(N/M·p) samples of its class in data order, then round(N/M·(1−p)) samples of what all
    clients left over, shuffled once. For p = 1 it takes all samples of its class. Clients with the
    same class divide it between them, in order. With as many clients as classes this is the
    published rule.

    So a client's own class makes up at least the share p of its samples, up to half a sample. If
    the class has too few samples (in no published setting), the client takes fewer others.

    Raises:
        UsageError: p lies outside [0, 1], or there are more clients than samples.
    """
    if not 0 <= p <= 1:
        raise UsageError(f"p = {p:g} is not a degree of skew: give a number from 0 to 1")
    check_clients(len(labels), clients)
    labels = labels.cpu()
    share = len(labels) / clients
    wanted = round(share * p) if p < 1 else len(labels)
    members = owner_partition(labels, classes)
    own = [_own_samples(members, clients, client, wanted) for client in range(clients)]
    if p == 1:
        return own
    left_over = torch.ones(len(labels), dtype=torch.bool)
    left_over[torch.cat(own)] = False
    pool = left_over.nonzero().flatten()
    pool = pool[torch.randperm(len(pool), generator=randomness.generator("partition"))]
    # If the class has too few samples, this many others leave it the share p > 0. The small addend
    # keeps an exact quotient such as 5250·(0.25/0.75) from being rounded down.
    fitting = [math.floor(len(mine) * (1 - p) / p + 1e-9) if p else 0 for mine in own]
    full = round(share * (1 - p))
    counts = [full if len(mine) == wanted else n for mine, n in zip(own, fitting, strict=True)]
    # If the pool is too small, the last clients get fewer.
    ends = np.minimum(np.cumsum(counts), len(pool)).tolist()
    others = pool[: ends[-1]].tensor_split(ends[:-1])
    return [torch.cat(parts) for parts in zip(own, others, strict=True)]


def _own_samples(members: Sequence[Tensor], clients: int, client: int, wanted: int) -> Tensor:
    """Return indices of a client's samples of its own class: up to ``wanted``, in data order.

    Args:
        members: Indices of the samples of each class.
        clients: Number of all clients.
        client: The number of this one.
        wanted: Largest number of samples.
    """
    classes = len(members)
    own, sharers = members[client % classes], len(range(client % classes, clients, classes))
    if sharers * wanted <= len(own):
        start = client // classes * wanted
        return own[start : start + wanted]
    return own.tensor_split(sharers)[client // classes][:wanted]


_DRAWS = 10_000
"""Number of failed draws after which a partition is given up."""


def dirichlet_partition(
    labels: Tensor,
    classes: int,
    clients: int,
    alpha: float,
    randomness: Randomness,
    min_samples: int = 10,
) -> list[Tensor]:
    """Partition each class by shares drawn from a Dirichlet distribution.

    As in Section 5.1 of the FedDecorr paper (Shi et al., ICLR 2023) and in its authors' code: for
    each class, the shares of the K clients are drawn from Dir(α). A client that already has N/K of
    the N samples gets none of the class. The whole partition is drawn again until each client has
    ``min_samples``. At α = ∞ the result is ``iid_partition``.

    Raises:
        UsageError: α is not positive, or the clients cannot have so many samples each.
    """
    if not alpha > 0:
        raise UsageError(f"alpha = {alpha:g} is not a concentration: give a number above 0")
    check_clients(len(labels), clients)
    if alpha == math.inf:
        return iid_partition(len(labels), clients, randomness)
    if clients * min_samples > len(labels):
        raise UsageError(
            f"{clients} clients with {min_samples} samples at least need "
            f"{clients * min_samples} of the {len(labels)} there are: give fewer clients or a "
            "smaller partition.min_samples"
        )
    source = np.random.default_rng(randomness.integer("partition"))
    members = [own.numpy() for own in owner_partition(labels, classes)]
    for _ in range(_DRAWS):
        counts = _dirichlet_counts([len(own) for own in members], clients, alpha, source)
        if counts is not None and counts.sum(axis=0).min() >= min_samples:
            return _split_by_client(members, counts, source)
    raise UsageError(
        f"alpha = {alpha:g} left some of {clients} clients with fewer than {min_samples} samples "
        f"in {_DRAWS:,} draws: give a larger alpha, fewer clients or a smaller "
        "partition.min_samples"
    )


def _dirichlet_counts(
    sizes: list[int], clients: int, alpha: float, source: np.random.Generator
) -> NDArray[np.int64] | None:
    """Draw how many samples of each class (rows) each client (columns) gets.

    Return None if a whole class would go to clients that may not get more samples.
    """
    enough = sum(sizes) / clients
    counts = np.zeros((len(sizes), clients), np.int64)
    for row, size in zip(counts, sizes, strict=True):
        shares = source.dirichlet(np.full(clients, alpha)) * (counts.sum(axis=0) < enough)
        sums = np.cumsum(shares)
        if not sums[-1] > 0:
            return None
        # A share of 0 leaves the sum unchanged, and so the end: rounding gives it no sample.
        ends = (sums / sums[-1] * size).astype(np.int64)
        row[:] = np.diff(ends, prepend=0)
    return counts


def _split_by_client(
    members: list[NDArray[np.int64]],
    counts: NDArray[np.int64],
    source: np.random.Generator,
) -> list[Tensor]:
    """Shuffle each class, split it by its row of ``counts``, and join the parts by client."""
    by_class = [
        np.split(source.permutation(own), np.cumsum(row)[:-1])
        for own, row in zip(members, counts, strict=True)
    ]
    return [torch.from_numpy(np.concatenate(parts)) for parts in zip(*by_class, strict=True)]


def classes_partition(
    labels: Tensor, classes: int, clients: int, classes_per_client: int, randomness: Randomness
) -> list[Tensor]:
    """Give each of K clients samples of M = ``classes_per_client`` classes only.

    A client takes M of the classes that have the fewest clients, at random among equals, so that
    the numbers of clients differ by one at most. The clients of a class divide its samples equally.
    With M·K below the number of classes, samples of classes without a client are left out; with M·K
    up to the number of classes no two clients share a class. This is the "pathological" partition
    in a balanced form: McMahan et al. (2017) sort the samples by label, cut them into M·K shards of
    one size and assign these at random, so that a client has at most about M classes.

    Raises:
        UsageError: M is not between 1 and the number of classes, or a class has fewer samples than
            clients.
    """
    if not 1 <= classes_per_client <= classes:
        raise UsageError(
            f"classes_per_client = {classes_per_client} does not fit {classes} classes: give a "
            f"number from 1 to {classes}"
        )
    check_clients(len(labels), clients)
    generator = randomness.generator("partition")
    clients_of = _assign_classes(classes, clients, classes_per_client, generator)
    members_of = owner_partition(labels, classes)
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for number, (own, members) in enumerate(zip(clients_of, members_of, strict=True)):
        if len(members) < len(own):
            raise UsageError(
                f"{clients} clients with {classes_per_client} classes each share class {number} "
                f"among {len(own)}, but it has {len(members)} samples: give fewer clients"
            )
        shuffled = members[torch.randperm(len(members), generator=generator)]
        for client, part in zip(own, shuffled.tensor_split(max(1, len(own))), strict=False):
            parts[client].append(part)
    return [torch.cat(own) for own in parts]


def _assign_classes(
    classes: int, clients: int, each: int, generator: torch.Generator
) -> list[list[int]]:
    """Return the clients of each class.

    In random order, each client takes ``each`` classes, those with the fewest clients so far.
    """
    clients_of: list[list[int]] = [[] for _ in range(classes)]
    for client in torch.randperm(clients, generator=generator).tolist():
        order = torch.randperm(classes, generator=generator).tolist()
        for number in sorted(order, key=lambda c: len(clients_of[c]))[:each]:
            clients_of[number].append(client)
    return clients_of


def owner_partition(owners: Tensor, clients: int) -> list[Tensor]:
    """Return, for each client i, the indices of the samples whose int64 owner is i, ascending."""
    # One sort for all: a comparison for each of 100,000 clients would take hours.
    sizes = owners.cpu().bincount(minlength=clients).tolist()
    return list(torch.split(owners.cpu().argsort(stable=True), sizes))


def check_clients(samples: int, clients: int, unit: str = "image") -> None:
    """Raise ``UsageError`` if there are more clients than samples, called ``unit`` in messages."""
    if clients > samples:
        raise UsageError(
            f"clients = {clients} is more than the {samples} {unit}s: give at most {samples} "
            "clients"
        )
