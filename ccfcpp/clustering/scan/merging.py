"""Which over-clusters belong together, and into how many clusters.

A head with more clusters than are asked for finds kinds of images, and a kind is a part of one
class more often than of two. J is the joint distribution of the over-clusters of two images that go
together. There are two of them: of neighbours, and of images of one client. A cluster is a whole
where the companions of its images are in it, too. So of all ways to merge over-clusters into k, the
one is wanted with the highest sum of the shares of companions that stay in the cluster,

    Σ_J A(J),   A(J) = Σ_g J_gg / q_g ,   q the sums of J's rows.

k − A is the normalised cut of J's graph into k parts (Shi and Malik, *Normalized Cuts and Image
Segmentation*, PAMI 2000; Yu and Shi, *Multiclass Spectral Clustering*, ICCV 2003), over merges
instead of spectra. Each cluster counts alike, however few images it has. The sum needs no weight
for what clients tell. Where they are alike, J = q qᵀ, and A is 1 for every merge. Where a client
holds several classes, the shares of its clusters have the sum 1 for every merge inside the client,
and neighbours decide; but a merge of what different clients hold loses some.

The best merge is found as k-means is: from several starts, over-clusters move one by one while the
sum grows. One start is agglomerative (``agglomerated``), the others are random.

Where nobody knows k, it is found from the neighbours. A head with m over-clusters finds m kinds of
images, whatever k is. The images are divided at random into a few folds, and each fold has its own
sum J of neighbours. Of every halving of the folds one half says how over-clusters are merged into k
(``agglomerated``), and the other half how much the k-th cluster is worth:

    G(k) = I(k) − I(k − 1) ,   I = Σ_gh J_gh log (J_gh / (q_g q_h)) of its J merged into k ,

the mean over all halvings, both ways round. What one half has by chance, the other has not. For
merges of k equal clusters without common neighbours G(k) = 2 log 2 / k. So k·G(k) stays about level
up to the number of clusters, and falls where clusters begin to be parts of one whole, whose images
are each other's neighbours. The number of clusters is where it falls most:

    E(k) = mean of i·G(i) over i = k − 2, k − 1, k, less its mean over i = k + 1, k + 2, k + 3 ,

where the first mean has fewer terms for k below 4: the least i is 2.

I, mutual information, is the objective of Ji, Henriques and Vedaldi (*Invariant Information
Clustering*, ICCV 2019), over merges instead of networks; ``agglomerated`` is from Slonim and Tishby
(*Agglomerative Information Bottleneck*, NIPS 1999). That the information of held-back data tells
the number of clusters is Still and Bialek's idea (*How Many Clusters? An Information-Theoretic
Perspective*, Neural Computation 16, 2004). It counts by size, and joins small classes: as a rule
for merges A is better, and as one for their number I, since A keeps the smallest of all apart.
"""

from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

_STARTS = 30

_MOST_NUMBERS = 2**22
"""Of the memberships of all starts that are moved side by side, for memory."""

_LEAST_GAIN = 1e-9
"""Of a move, so that rounding errors move nothing for ever."""

FOLDS = 6
"""Into which images are divided; they have ten halvings."""

OVERCLUSTERS = 2
"""For each cluster of the largest number that may be found."""

_WINDOW = 3
"""Numbers of clusters whose mean stands on either side."""


def merged(transitions: Tensor, clusters: int, generator: torch.Generator | None) -> Tensor:
    """The cluster of each over-cluster.

    Args:
        transitions: Sums over pairs of images of p(x) p(x′)ᵀ, for each kind of pairs, of shape
            (kinds, m, m) with m ≥ k, not negative.
        clusters: k.
        generator: Of the random starts, on the CPU; None for the agglomerative start alone.

    Returns:
        int64 of shape (m,), where clusters are numbered by their first over-cluster.
    """
    joint = joint_distribution(transitions)
    starts = [] if generator is None else _random_starts(joint.shape[-1], clusters, generator)
    starts.append(agglomerated(joint)[clusters - 1])
    together = max(1, _MOST_NUMBERS // (joint.shape[-1] * clusters))
    parts = torch.split(torch.stack(starts), together)
    found = [groups for part in parts for groups in _moved(joint, part, clusters)]
    return _numbered(max(found, key=lambda groups: association(joint, groups, clusters)))


def joint_distribution(transitions: Tensor) -> Tensor:
    """J of sums of p(x) p(x′)ᵀ of shape (…, m, m): symmetric, of sum 1, float64 on the CPU."""
    joint = transitions.detach().double().cpu()
    total = joint.sum(dim=(-2, -1), keepdim=True)
    return (joint + joint.mT) / (2 * total).clamp(min=1e-300)


def _random_starts(over: int, clusters: int, generator: torch.Generator) -> list[Tensor]:
    """Half of them have clusters of equal size, from which moves may not reach the best of all."""
    every, even = torch.arange(clusters), torch.arange(over) % clusters
    uneven = [
        torch.cat([every, torch.randint(clusters, (over - clusters,), generator=generator)])
        for _ in range(_STARTS)
    ]
    return [start[torch.randperm(over, generator=generator)] for start in [even] * _STARTS + uneven]


def agglomerated(joint: Tensor) -> list[Tensor]:
    """Merges for every number of clusters: the two that cost least information, one after another.

    Args:
        joint: J of each kind, symmetric, float64 of shape (kinds, m, m), of sum 1.

    Returns:
        m tensors, int64 of shape (m,), of which number i has i + 1 clusters, numbered by their
        first over-cluster.
    """
    groups = torch.arange(joint.shape[-1])
    path = [groups]
    # Of each pair of rows: what the terms of all columns grow by where the two become one.
    grown = _growth(joint.unsqueeze(-2), joint.unsqueeze(-3)).sum(dim=-1)
    while joint.shape[-1] > 1:
        losses = _losses(joint, grown).fill_diagonal_(torch.inf)
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
    """How much the sum of I falls where two clusters become one: (k, k), but for the diagonal."""
    itself = joint.diagonal(dim1=-2, dim2=-1)
    row, column = itself.unsqueeze(-1), itself.unsqueeze(-2)
    others = grown - _growth(row, joint) - _growth(joint, column)
    own = _x_log_x(row + column + 2 * joint)
    own = own - _x_log_x(row) - _x_log_x(column) - 2 * _x_log_x(joint)
    return (2 * _growth_in(joint.sum(dim=-1)) - 2 * others - own).sum(dim=0)


def _growth_in(column: Tensor) -> Tensor:
    """``_growth`` of each pair of a column's elements: (kinds, m) to (kinds, m, m)."""
    return _growth(column.unsqueeze(-1), column.unsqueeze(-2))


def _growth(x: Tensor, y: Tensor) -> Tensor:
    """How much Σ x log x grows where two terms become one."""
    return _x_log_x(x + y) - _x_log_x(x) - _x_log_x(y)


def association(joint: Tensor, groups: Tensor, clusters: int) -> float:
    """The sum of A over kinds of pairs: how many clusters keep their companions.

    Args:
        joint: J of each kind, symmetric, float64 of shape (kinds, m, m), of sum 1.
        groups: The cluster of each over-cluster, int64 of shape (m,).
        clusters: k.
    """
    member = F.one_hot(groups, clusters).double()
    grouped = member.T @ joint @ member
    return float(_ratio(grouped.diagonal(dim1=-2, dim2=-1), grouped.sum(dim=-1)).sum())


def _moved(joint: Tensor, starts: Tensor, clusters: int) -> Tensor:
    """The groups after moves of single over-clusters, until none makes A grow: (starts, m)."""
    groups, over = starts.clone(), starts.shape[1]
    sums = _Sums(joint, groups, clusters)
    tried = torch.zeros(len(groups), dtype=torch.int64)  # Since the last move of each start.
    own = 0
    while len(going := (tried < over).nonzero().flatten()):
        now = groups[going, own]
        gains = sums.gains(going, own, now)
        most, best = gains.max(dim=1)
        grows = most > gains.gather(1, now.unsqueeze(1)).squeeze(1) + _LEAST_GAIN
        # The last over-cluster of a cluster stays: there are to be k.
        grows &= (groups[going] == now.unsqueeze(1)).sum(dim=1) > 1
        sums.move(going[grows], own, now[grows], best[grows])
        groups[going[grows], own] = best[grows]
        tried[going] = torch.where(grows, 0, tried[going] + 1)
        own = (own + 1) % over
    return groups


class _Sums:
    """Sums of J over clusters, from several starts; a move changes few of them.

    Attributes:
        towards: Of J from each over-cluster to each cluster, (kinds, starts, m, k).
        inside: Of J within each cluster, (kinds, starts, k).
        share: Of the rows of each cluster, (kinds, starts, k).
    """

    def __init__(self, joint: Tensor, groups: Tensor, clusters: int) -> None:
        member = F.one_hot(groups, clusters).double()
        self.joint, self.rows, self.clusters = joint, joint.sum(dim=-1), clusters
        self.towards = joint.unsqueeze(1) @ member
        self.inside = (self.towards * member).sum(dim=-2)
        self.share = torch.einsum("jm,smk->jsk", self.rows, member)

    def gains(self, starts: Tensor, own: int, now: Tensor) -> Tensor:
        """What one over-cluster adds to the sum of A in each of the clusters: (starts, k).

        Args:
            starts: Those that are asked, int64.
            own: The over-cluster.
            now: Its cluster in each of them.
        """
        here = F.one_hot(now, self.clusters).double()
        itself, row = self.joint[:, own, own, None, None], self.rows[:, own, None, None]
        between = self.towards[:, starts, own] - itself * here
        added = 2 * between + itself
        inside = self.inside[:, starts] - here * added
        share = self.share[:, starts] - here * row
        return (_ratio(inside + added, share + row) - _ratio(inside, share)).sum(dim=0)

    def move(self, starts: Tensor, own: int, now: Tensor, to: Tensor) -> None:
        """Move an over-cluster from one cluster to another; arguments as for ``gains``."""
        itself, row = self.joint[:, own, own, None], self.rows[:, own, None]
        place = torch.arange(len(starts))
        before, after = (self.towards[:, starts, own][:, place, each] for each in (now, to))
        self.inside[:, starts, now] -= 2 * before - itself
        self.inside[:, starts, to] += 2 * after + itself
        self.share[:, starts, now] -= row
        self.share[:, starts, to] += row
        self.towards[:, starts, :, now] -= self.joint[:, own]
        self.towards[:, starts, :, to] += self.joint[:, own]


def _ratio(inside: Tensor, share: Tensor) -> Tensor:
    """The share of companions that are inside; 0 where there are none, but for rounding."""
    return inside / share.clamp(min=1e-12)


def mutual_information(joint: Tensor, groups: Tensor, clusters: int) -> float:
    """The sum of I over kinds of pairs, in nats.

    Args:
        joint: J of each kind, symmetric, float64 of shape (kinds, m, m), of sum 1.
        groups: The cluster of each over-cluster, int64 of shape (m,).
        clusters: k.
    """
    member = F.one_hot(groups, clusters).double()
    grouped = member.T @ joint @ member
    return float(_x_log_x(grouped).sum() - 2 * _x_log_x(grouped.sum(dim=-1)).sum())


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


def _x_log_x(x: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(x, x)
    return terms


def numbered_like(groups: Tensor, before: Tensor, shares: Tensor) -> Tensor:
    """The same groups; those that have most in common with earlier ones have their numbers.

    Args:
        groups: int64 of shape (m,), numbers from 0 to k − 1.
        before: The earlier groups, int64 of shape (m,); −1 for over-clusters that had none.
        shares: How many images each over-cluster has, or their share, float64 of shape (m,).

    Returns:
        int64 of shape (m,), numbers from 0 to k − 1.
    """
    from scipy.optimize import linear_sum_assignment

    clusters = int(groups.max()) + 1
    common = torch.zeros(clusters, max(clusters, int(before.max()) + 1), dtype=torch.float64)
    kept = before >= 0
    common.index_put_((groups[kept], before[kept]), shares[kept], accumulate=True)
    # An earlier number that is too large for k clusters cannot be kept.
    numbers = torch.from_numpy(linear_sum_assignment(common[:, :clusters], maximize=True)[1])
    return numbers[groups]


def _numbered(groups: Tensor) -> Tensor:
    """The same groups, numbered by their first member."""
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups.tolist()])
