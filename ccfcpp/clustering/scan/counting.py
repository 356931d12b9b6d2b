"""How many clusters there are, where nobody knows: from sums over neighbours, and no label.

A head with m over-clusters finds m kinds of images, whatever k is. The images are divided at random
into a few folds, and each fold has its own sum J of neighbours. Of every halving of the folds one
half A says how over-clusters are merged into k (``merging.agglomerated``), and the other half B how
much the k-th cluster is worth:

    G(k) = I_B(g_A(k)) − I_B(g_A(k − 1)) ,

the mean over all halvings, both ways round. Information that A has by chance, B has not. For merges
of k equal clusters without common neighbours G(k) = 2 log 2 / k. So k·G(k) stays about level up to
the number of clusters, and falls where clusters begin to be parts of one whole, whose images are
each other's neighbours. The number of clusters is where it falls most:

    E(k) = mean of i·G(i) over i = k − 2, k − 1, k, less its mean over i = k + 1, k + 2, k + 3 ,

where the first mean has fewer terms for k below 4: the least i is 2.

That the information of held-back data tells the number of clusters is Still and Bialek's idea (*How
Many Clusters? An Information-Theoretic Perspective*, Neural Computation 16, 2004).
"""

from itertools import combinations

import torch
from torch import Tensor

from ccfcpp.clustering.scan.merging import agglomerated, joint_distribution, mutual_information

FOLDS = 6
"""Into which images are divided; they have ten halvings."""

OVERCLUSTERS = 2
"""For each cluster of the largest number that may be found."""

_WINDOW = 3
"""Numbers of clusters whose mean stands on either side."""


def evidence(folds: Tensor, fewest: int, most: int) -> Tensor:
    """E(k) for every number of clusters that may be found, in nats.

    Args:
        folds: Sums over the images of a fold and their neighbours of p(x) p(x′)ᵀ, of shape
            (folds, m, m), not negative, with m ≥ ``most`` + 3.
        fewest: Least number of clusters, 2 at least.
        most: Largest number.

    Returns:
        float64 of shape (most − fewest + 1,), on the CPU.
    """
    worth = worths(folds, most + _WINDOW)
    # The first is that of two clusters.
    ends = range(fewest - 1, most)
    return torch.stack(
        [worth[max(0, n - _WINDOW) : n].mean() - worth[n : n + _WINDOW].mean() for n in ends]
    )


def worths(folds: Tensor, most: int) -> Tensor:
    """k·G(k) for k from 2 to ``most``, float64 of shape (most − 1,)."""
    everyone = range(len(folds))
    halves = [list(half) for half in combinations(everyone, len(folds) // 2)]
    joints = {
        tuple(half): joint_distribution(folds[half].sum(dim=0, keepdim=True)) for half in halves
    }
    total = torch.zeros(most)
    for half, joint in joints.items():
        held_back = joints[tuple(fold for fold in everyone if fold not in half)]
        path = agglomerated(joint)[:most]
        known = [mutual_information(held_back, g, k) for k, g in enumerate(path, start=1)]
        total = total + torch.tensor(known, dtype=torch.float64) / len(joints)
    return total.diff() * torch.arange(2, most + 1)


def most_to_least(found: Tensor, fewest: int) -> list[int]:
    """Numbers of clusters, the one with the most evidence first."""
    return [fewest + place for place in found.argsort(descending=True, stable=True).tolist()]
