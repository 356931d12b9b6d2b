"""The merge of over-clusters into clusters, and the choice of their number.

A head with more outputs than clusters learns subclasses of images, and a subclass is a part of one
class more often than of two. J is the joint distribution of the over-clusters of a pair of images.
There are two kinds of pairs: neighbours, and images of one client. Of all ways to merge
over-clusters into k clusters, the one with the highest value of one of two measures is taken:

    information   I(mean of both J),   I(J) = Σ_gh J_gh log (J_gh / (q_g q_h)),   q_g = Σ_h J_gh;
    both          Σ_J A(J) + c I(J),   A(J) = Σ_g J_gg / q_g .

I is mutual information, the objective of Ji, Henriques and Vedaldi (*Invariant Information
Clustering*, ICCV 2019), here over merges instead of networks. It weights a cluster by its size, and
so merges small classes. A adds up, over clusters, the share of pairs that stay inside; k − A is the
normalised cut of J's graph (Shi and Malik, *Normalized Cuts and Image Segmentation*, PAMI 2000). It
weights all clusters alike, so that separate groups, small or large, stay separate. A alone takes a
subclass of a large class for a cluster, and merges two classes instead; the sum of both does
neither.

No weight of the pairs of one client is needed. If clients are alike, J = q qᵀ, and I is 0 and A
is 1 for every merge. If a client holds several classes, the sum over both J prefers none of the
merges inside the client, and neighbours decide; but it loses by merging classes of different
clients. The information of the mean relies more on clients: it finds more classes whose subclasses
are no neighbours, and may merge two small classes of one client.

The search is like that of k-means: from several starts, over-clusters move one by one while the
measure grows, as in Slonim, Friedman and Tishby's sequential information bottleneck (*Unsupervised
Document Classification using Sequential Information Maximization*, SIGIR 2002). One start is their
agglomerative one (*Agglomerative Information Bottleneck*, NIPS 1999), by the same measure; the
others are random.

If k is unknown, it is chosen by the neighbours. A head with m over-clusters learns m subclasses
of images, whatever k is. The images are divided at random into a few folds, and each fold has its
own sum J of neighbours. Of every halving of the folds, one half determines how over-clusters are
merged into k (``agglomerated``), and the other half measures the gain of the k-th cluster:

    G(k) = I(its J merged into k) − I(its J merged into k − 1) ,

averaged over all halvings, both ways round. What one half has by chance, the other has not. For
merges of k equal clusters without common neighbours G(k) = 2 log 2 / k. So k·G(k) stays about level
up to the number of clusters, and falls where clusters begin to be parts of one whole, whose images
are each other's neighbours. The number of clusters is where it falls most, at the maximum of

    E(k) = mean of i·G(i) over i = k − 2, k − 1, k, less its mean over i = k + 1, k + 2, k + 3 ,

where the first mean has fewer terms for k below 4, since i is at least 2.

To choose the number of clusters by the information of held-back data is Still and Bialek's idea
(*How Many Clusters? An Information-Theoretic Perspective*, Neural Computation 16, 2004).
"""

from itertools import combinations
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

T = TypeVar("T", float, Tensor)

Rule = Literal["information", "both"]
"""By which over-clusters are merged."""

_OF_INFORMATION = 0.6
"""c: of the digits and of MNIST, equal classes need 0.5 at least, and unequal ones at most 0.8."""

_STARTS = 30

_MOST_NUMBERS = 2**22
"""Largest number of memberships of all starts that are moved side by side, for memory."""

_LEAST_GAIN = 1e-9
"""Smallest gain of a move, so that rounding errors cause no endless moves."""

FOLDS = 6
"""Into which images are divided; they have ten halvings."""

OVERCLUSTERS = 2
"""Over-clusters for each cluster of the largest candidate number."""

_WINDOW = 3
"""Numbers of clusters whose mean stands on either side."""


def merged(
    transitions: Tensor,
    clusters: int,
    generator: torch.Generator | None,
    rule: Rule = "both",
) -> Tensor:
    """Return the cluster of each over-cluster under the best merge.

    Args:
        transitions: Sums over pairs of images of p(x) p(x′)ᵀ, for each kind of pairs, of shape
            (kinds, m, m) with m ≥ k, not negative.
        clusters: Number of clusters k.
        generator: Draws the random starts, on the CPU; None for the agglomerative start alone.
        rule: The quantity to maximise.

    Returns:
        int64 of shape (m,), where clusters are numbered by their first over-cluster.
    """
    joint = joint_distribution(transitions)
    if rule == "information":
        joint = joint.mean(dim=0, keepdim=True)
    starts = [] if generator is None else _random_starts(joint.shape[-1], clusters, generator)
    starts.append(agglomerated(joint, rule)[clusters - 1])
    together = max(1, _MOST_NUMBERS // (joint.shape[-1] * clusters))
    parts = torch.split(torch.stack(starts), together)
    found = [groups for part in parts for groups in _moved(joint, part, clusters, rule)]
    return _numbered(max(found, key=lambda groups: _worth(joint, groups, clusters, rule)))


def _worth(joint: Tensor, groups: Tensor, clusters: int, rule: Rule) -> float:
    """Compute the measure that a rule maximises, for one merge of over-clusters."""
    known = mutual_information(joint, groups, clusters)
    return known if rule == "information" else _both(association(joint, groups, clusters), known)


def _both(association: T, information: T) -> T:
    """Return the quantity of the rule ``both``: A plus c times I."""
    return association + _OF_INFORMATION * information


def joint_distribution(transitions: Tensor) -> Tensor:
    """Normalise sums of p(x) p(x′)ᵀ (…, m, m) to J: symmetric, of sum 1, float64 on the CPU."""
    joint = transitions.detach().double().cpu()
    total = joint.sum(dim=(-2, -1), keepdim=True)
    return (joint + joint.mT) / (2 * total).clamp(min=1e-300)


def _random_starts(over: int, clusters: int, generator: torch.Generator) -> list[Tensor]:
    """Draw random assignments of over-clusters to clusters.

    Half have clusters of equal size; the others are uneven, since moves may miss the best merge.
    """
    every, even = torch.arange(clusters), torch.arange(over) % clusters
    uneven = [
        torch.cat([every, torch.randint(clusters, (over - clusters,), generator=generator)])
        for _ in range(_STARTS)
    ]
    return [start[torch.randperm(over, generator=generator)] for start in [even] * _STARTS + uneven]


def agglomerated(joint: Tensor, rule: Rule = "information") -> list[Tensor]:
    """Return merges into every number of clusters, joining the cheapest pair of clusters each time.

    Args:
        joint: J of each kind, symmetric, float64 of shape (kinds, m, m), of sum 1.
        rule: The quantity that a merge costs least of.

    Returns:
        m tensors, int64 of shape (m,), of which number i has i + 1 clusters, numbered by their
        first over-cluster.
    """
    groups = torch.arange(joint.shape[-1])
    path = [groups]
    # Of each pair of rows: what the terms of all columns grow by where the two become one.
    grown = _growth(joint.unsqueeze(-2), joint.unsqueeze(-3)).sum(dim=-1)
    while joint.shape[-1] > 1:
        losses = _losses(joint, grown)
        if rule == "both":
            losses = _both(_losses_of_association(joint), losses)
        losses.fill_diagonal_(torch.inf)
        first, second = sorted(divmod(int(losses.argmin()), len(losses)))
        kept = torch.arange(len(losses)) != second
        grown = grown - _growth_in(joint[..., first]) - _growth_in(joint[..., second])
        joint = joint.index_add(1, torch.tensor([first]), joint[:, second : second + 1])
        joint = joint.index_add(2, torch.tensor([first]), joint[..., second : second + 1])
        joint, grown = joint[:, kept][..., kept], grown[:, kept][..., kept]
        grown = grown + _growth_in(joint[..., first])
        of_first = _growth(joint, joint[:, first : first + 1]).sum(dim=-1)
        grown[:, first] = grown[..., first] = of_first
        groups = torch.where(groups == second, first, groups)
        groups = groups - (groups > second).long()
        path.append(groups)
    return path[::-1]


def _losses(joint: Tensor, grown: Tensor) -> Tensor:
    """Compute how much I falls if two clusters are merged: (k, k); the diagonal is void."""
    itself = joint.diagonal(dim1=-2, dim2=-1)
    row, column = itself.unsqueeze(-1), itself.unsqueeze(-2)
    others = grown - _growth(row, joint) - _growth(joint, column)
    own = _x_log_x(row + column + 2 * joint)
    own = own - _x_log_x(row) - _x_log_x(column) - 2 * _x_log_x(joint)
    return (2 * _growth_in(joint.sum(dim=-1)) - 2 * others - own).sum(dim=0)


def _growth_in(column: Tensor) -> Tensor:
    """Apply ``_growth`` to each pair of elements of a column: (kinds, m) to (kinds, m, m)."""
    return _growth(column.unsqueeze(-1), column.unsqueeze(-2))


def _growth(x: Tensor, y: Tensor) -> Tensor:
    """Compute how much Σ x log x grows if two terms become one."""
    return _x_log_x(x + y) - _x_log_x(x) - _x_log_x(y)


def association(joint: Tensor, groups: Tensor, clusters: int) -> float:
    """Return A, summed over kinds of pairs: how often two images of a pair share their cluster.

    Args:
        joint: J of each kind, symmetric, float64 of shape (kinds, m, m), of sum 1.
        groups: The cluster of each over-cluster, int64 of shape (m,).
        clusters: Number of clusters k.
    """
    grouped = _grouped(joint, groups, clusters)
    return float(_ratio(grouped.diagonal(dim1=-2, dim2=-1), grouped.sum(dim=-1)).sum())


def _grouped(joint: Tensor, groups: Tensor, clusters: int) -> Tensor:
    """Sum J over the over-clusters of each pair of clusters: (kinds, k, k)."""
    member = F.one_hot(groups, clusters).double()
    return member.T @ joint @ member


def _moved(joint: Tensor, starts: Tensor, clusters: int, rule: Rule) -> Tensor:
    """Move single over-clusters while the rule's quantity grows; return groups (starts, m)."""
    groups, over = starts.clone(), starts.shape[1]
    tried = torch.zeros(len(groups), dtype=torch.int64)  # Since the last move of each start.
    own = 0
    while len(going := (tried < over).nonzero().flatten()):
        gains = _information_with(joint, groups[going], own, clusters)
        if rule == "both":
            gains = _both(_association_with(joint, groups[going], own, clusters), gains)
        most, best = gains.max(dim=1)
        now = groups[going, own]
        grows = most > gains.gather(1, now.unsqueeze(1)).squeeze(1) + _LEAST_GAIN
        # The last over-cluster of a cluster stays: there are to be k.
        grows &= (groups[going] == now.unsqueeze(1)).sum(dim=1) > 1
        groups[going, own] = torch.where(grows, best, now)
        tried[going] = torch.where(grows, 0, tried[going] + 1)
        own = (own + 1) % over
    return groups


def _information_with(joint: Tensor, groups: Tensor, own: int, clusters: int) -> Tensor:
    """Compute I, but for a constant, with one over-cluster in each of the clusters.

    Args:
        joint: J of each kind, (kinds, m, m).
        groups: The clusters so far, from several starts, (starts, m).
        own: The over-cluster.
        clusters: Number of clusters k.

    Returns:
        float64 of shape (starts, k).
    """
    member = F.one_hot(groups, clusters).double()
    member[:, own] = 0
    others = member.mT @ (joint.unsqueeze(1) @ member)
    to_others = torch.einsum("jm,smk->jsk", joint[:, own], member)
    shares = others.sum(dim=-1) + to_others
    row, itself = joint[:, own].sum(dim=-1), joint[:, own, own]
    grown = _x_log_x(shares + row[:, None, None]) - _x_log_x(shares)
    itself = itself[:, None, None]
    return (_gain_of_rows(others, to_others, itself) - 2 * grown).sum(dim=0)


def _gain_of_rows(others: Tensor, added: Tensor, itself: Tensor) -> Tensor:
    """Compute how much J's terms gain if row g, column g and their common element grow."""
    grown = _x_log_x(others + added.unsqueeze(-2)) - _x_log_x(others)
    own = others.diagonal(dim1=-2, dim2=-1)
    return (
        2 * (grown.sum(dim=-1) - grown.diagonal(dim1=-2, dim2=-1))
        + _x_log_x(own + 2 * added + itself)
        - _x_log_x(own)
    )


def _association_with(joint: Tensor, groups: Tensor, own: int, clusters: int) -> Tensor:
    """Compute the growth of A if an over-cluster joins each cluster; arguments as for I."""
    member = F.one_hot(groups, clusters).double()
    member[:, own] = 0
    inside = ((joint.unsqueeze(1) @ member) * member).sum(dim=-2)
    share = torch.einsum("jm,smk->jsk", joint.sum(dim=-1), member)
    between = torch.einsum("jm,smk->jsk", joint[:, own], member)
    itself, row = joint[:, own, own], joint[:, own].sum(dim=-1)
    after = inside + 2 * between + itself[:, None, None]
    return (_ratio(after, share + row[:, None, None]) - _ratio(inside, share)).sum(dim=0)


def _ratio(inside: Tensor, share: Tensor) -> Tensor:
    """Return the share of pairs that are inside a cluster; 0 without pairs."""
    return inside / share.clamp(min=1e-300)


def _losses_of_association(joint: Tensor) -> Tensor:
    """Compute how much A falls if two clusters are merged: (k, k); the diagonal is void."""
    inside, share = joint.diagonal(dim1=-2, dim2=-1), joint.sum(dim=-1)
    alone = _ratio(inside, share)
    both = _ratio(
        inside.unsqueeze(-1) + inside.unsqueeze(-2) + 2 * joint,
        share.unsqueeze(-1) + share.unsqueeze(-2),
    )
    return (alone.unsqueeze(-1) + alone.unsqueeze(-2) - both).sum(dim=0)


def mutual_information(joint: Tensor, groups: Tensor, clusters: int) -> float:
    """Return mutual information I, summed over kinds of pairs, in nats.

    Args:
        joint: J of each kind, symmetric, float64 of shape (kinds, m, m), of sum 1.
        groups: The cluster of each over-cluster, int64 of shape (m,).
        clusters: Number of clusters k.
    """
    grouped = _grouped(joint, groups, clusters)
    return float(_x_log_x(grouped).sum() - 2 * _x_log_x(grouped.sum(dim=-1)).sum())


def evidence(folds: Tensor, fewest: int, most: int) -> Tensor:
    """Return the evidence E(k) for every candidate number of clusters, in nats.

    Args:
        folds: Sums over the images of a fold and their neighbours of p(x) p(x′)ᵀ, of shape
            (folds, m, m), not negative, with m ≥ ``most`` + 3.
        fewest: Smallest candidate, at least 2.
        most: Largest candidate.

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
    """Return k·G(k) for k from 2 to ``most``, float64 of shape (most − 1,)."""
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


def _x_log_x(x: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(x, x)
    return terms


def numbered_like(groups: Tensor, before: Tensor, shares: Tensor) -> Tensor:
    """Renumber groups to keep the numbers of the earlier groups they share most images with.

    Args:
        groups: int64 of shape (m,), numbers from 0 to k − 1.
        before: The earlier groups, int64 of shape (m,).
        shares: Number of images of each over-cluster, or their share, float64 of shape (m,).

    Returns:
        int64 of shape (m,), numbers from 0 to k − 1.
    """
    from scipy.optimize import linear_sum_assignment

    clusters = int(groups.max()) + 1
    common = torch.zeros(clusters, max(clusters, int(before.max()) + 1), dtype=torch.float64)
    common.index_put_((groups, before), shares, accumulate=True)
    # An earlier number that is too large for k clusters cannot be kept.
    numbers = torch.from_numpy(linear_sum_assignment(common[:, :clusters], maximize=True)[1])
    return numbers[groups]


def _numbered(groups: Tensor) -> Tensor:
    """Renumber groups by their first member."""
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups.tolist()])
