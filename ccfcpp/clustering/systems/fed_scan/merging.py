"""The merge of over-clusters into clusters, and the choice of their number.

A head with more outputs than clusters learns *over-clusters*, subclasses of images, most of which
are part of a single class. J is the joint distribution of the over-clusters of the two images of a
pair. There is one J for pairs of neighbours, and one for pairs of images of the same client. Of all
merges of over-clusters into k clusters g, the one that maximises one of two measures is chosen:

    information   I(mean of both J),   I(J) = Σ_gh J_gh log (J_gh / (q_g q_h)),   q_g = Σ_h J_gh;
    both          Σ_J A(J) + c I(J),   A(J) = Σ_g J_gg / q_g .

I is mutual information, the objective of Ji, Henriques and Vedaldi (*Invariant Information
Clustering*, ICCV 2019), here over merges instead of networks. It weights a cluster by its size, so
it tends to merge small classes. A adds up, over clusters, the share of a cluster's pairs whose two
images are both in it; k − A is the normalised cut of J's graph (Shi and Malik, *Normalized Cuts and
Image Segmentation*, PAMI 2000). It weights all clusters equally, so separate classes stay separate,
whatever their size; but alone it may split a large class and merge two others. The sum of both
measures avoids both errors.

Pairs of the same client need no weight. If all clients have the same classes, their J is q qᵀ, with
I = 0 and A = 1 for every merge, so only neighbours count. If clients have different classes, their
J says nothing about merges within a client, and penalises those across clients. The measure
``information`` relies more on clients: it finds more classes whose subclasses are no neighbours,
and may merge two small classes of one client.

The search is like that of k-means: from several initial merges, single over-clusters move to
another cluster as long as the measure grows, as in the sequential information bottleneck
(Slonim, Friedman and Tishby, *Unsupervised Document Classification using Sequential Information
Maximization*, SIGIR 2002). One initial merge is agglomerative (Slonim and Tishby,
*Agglomerative Information Bottleneck*, NIPS 1999), by the same measure; the others are random.

If k is unknown, it is chosen from the neighbours, by cross-validation. The images are divided at
random into a few folds, and each fold has its own J of neighbours. Half of the folds determines how
over-clusters are merged into every k (``agglomerate``), and on the other half this merge gives the
gain of the k-th cluster,

    G(k) = I(J of the other half, merged into k) − I(the same, merged into k − 1) ,

averaged over all choices of the half. For k equal clusters whose images are not neighbours of each
other, G(k) = 2 log 2 / k. So k·G(k) is nearly constant up to the number of classes, and smaller
above it, where two clusters split a class, whose images are neighbours. The chosen number of
clusters is where it falls most, at the maximum of the *evidence*

    E(k) = mean of i·G(i) over i = k − 2, k − 1, k, minus its mean over i = k + 1, k + 2, k + 3 ;

for k below 4 the first mean has fewer terms, since i is at least 2.

Still and Bialek proposed to choose the number of clusters by the information of held-out data
(*How Many Clusters? An Information-Theoretic Perspective*, Neural Computation 16, 2004).
"""

from itertools import combinations
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

T = TypeVar("T", float, Tensor)

Rule = Literal["information", "both"]
"""Name of the measure that a merge of over-clusters maximises; see the module's docstring."""

_INFORMATION_WEIGHT = 0.6
"""Weight c. On digits and MNIST, equal classes need at least 0.5, unequal ones at most 0.8."""

_RESTARTS = 30

_MAX_ELEMENTS = 2**22
"""Largest number of elements of a tensor of memberships, which limits the memory used."""

_SMALLEST_GAIN = 1e-9
"""Smallest gain for which an over-cluster moves, so that rounding errors cause no endless loop."""

FOLDS = 6
"""Number of folds of the images if k is chosen from the data."""

OVERCLUSTERS = 2
"""Number of over-clusters per cluster of the largest candidate, if k is chosen from the data."""

_WINDOW = 3
"""Number of terms of each of the two means in E(k)."""


def merge_overclusters(
    transitions: Tensor,
    clusters: int,
    generator: torch.Generator | None,
    rule: Rule = "both",
) -> Tensor:
    """Return the cluster of each over-cluster under the best merge.

    Args:
        transitions: Sums over pairs of images of p(x) p(x′)ᵀ, where p holds the probabilities of
            the m ≥ k over-clusters. Shape (kinds, m, m), for one or more kinds of pairs.
        clusters: Number of clusters k.
        generator: Draws random initial merges, on the CPU; None for the agglomerative one alone.
        rule: The measure to maximise.

    Returns:
        int64 of shape (m,); clusters are numbered in the order of their first over-clusters.
    """
    joint = joint_distribution(transitions)
    if rule == "information":
        joint = joint.mean(dim=0, keepdim=True)
    initial = [] if generator is None else _random_merges(joint.shape[-1], clusters, generator)
    initial.append(agglomerate(joint, rule)[clusters - 1])
    together = max(1, _MAX_ELEMENTS // (joint.shape[-1] * clusters))
    parts = torch.split(torch.stack(initial), together)
    merges = [
        groups for part in parts for groups in _move_overclusters(joint, part, clusters, rule)
    ]
    return _renumber(max(merges, key=lambda groups: _measure(joint, groups, clusters, rule)))


def _measure(joint: Tensor, groups: Tensor, clusters: int, rule: Rule) -> float:
    """Score a merge: mutual information I, or A + c I (association A) for the rule ``both``."""
    value = mutual_information(joint, groups, clusters)
    return value if rule == "information" else _combine(association(joint, groups, clusters), value)


def _combine(association: T, information: T) -> T:
    """Return the measure ``both``, A + c I, of an association A and a mutual information I."""
    return association + _INFORMATION_WEIGHT * information


def joint_distribution(transitions: Tensor) -> Tensor:
    """Make ``transitions`` (…, m, m) symmetric and of sum 1: the joint J, float64 on the CPU."""
    joint = transitions.detach().double().cpu()
    total = joint.sum(dim=(-2, -1), keepdim=True)
    return (joint + joint.mT) / (2 * total).clamp(min=1e-300)


def _random_merges(over: int, clusters: int, generator: torch.Generator) -> list[Tensor]:
    """Draw random assignments of over-clusters to clusters, each of shape (over,).

    Half of them have clusters of equal size, the others of random sizes.
    """
    every, even = torch.arange(clusters), torch.arange(over) % clusters
    uneven = [
        torch.cat([every, torch.randint(clusters, (over - clusters,), generator=generator)])
        for _ in range(_RESTARTS)
    ]
    merges = [even] * _RESTARTS + uneven
    return [groups[torch.randperm(over, generator=generator)] for groups in merges]


def agglomerate(joint: Tensor, rule: Rule = "information") -> list[Tensor]:
    """Merge over-clusters greedily, joining the two clusters that reduce the measure least.

    Args:
        joint: J of each kind of pairs, symmetric, float64 of shape (kinds, m, m), of sum 1.
        rule: The measure: ``information`` or ``both``.

    Returns:
        m tensors, int64 of shape (m,). Tensor i has i + 1 clusters, numbered in the order of their
        first over-clusters.
    """
    groups = torch.arange(joint.shape[-1])
    path = [groups]
    # For each pair of rows: by how much Σ J log J over all columns grows if the rows are added.
    grown = _growth(joint.unsqueeze(-2), joint.unsqueeze(-3)).sum(dim=-1)
    while joint.shape[-1] > 1:
        losses = _losses(joint, grown)
        if rule == "both":
            losses = _combine(_losses_of_association(joint), losses)
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
    """Return how much mutual information falls if clusters are joined: (k, k), by pair.

    ``grown`` (kinds, k, k) is how much Σ J log J grows if two rows are added. Ignore the diagonal.
    """
    itself = joint.diagonal(dim1=-2, dim2=-1)
    row, column = itself.unsqueeze(-1), itself.unsqueeze(-2)
    others = grown - _growth(row, joint) - _growth(joint, column)
    own = _x_log_x(row + column + 2 * joint)
    own = own - _x_log_x(row) - _x_log_x(column) - 2 * _x_log_x(joint)
    return (2 * _growth_in(joint.sum(dim=-1)) - 2 * others - own).sum(dim=0)


def _growth_in(column: Tensor) -> Tensor:
    """Apply ``_growth`` to each pair of elements of vectors: (kinds, m) to (kinds, m, m)."""
    return _growth(column.unsqueeze(-1), column.unsqueeze(-2))


def _growth(x: Tensor, y: Tensor) -> Tensor:
    """Return by how much Σ x log x grows if its terms for x and y become one for x + y."""
    return _x_log_x(x + y) - _x_log_x(x) - _x_log_x(y)


def association(joint: Tensor, groups: Tensor, clusters: int) -> float:
    """Return the association A of a merge: summed over clusters, the share of pairs inside.

    Args:
        joint: J of each kind of pairs, symmetric, float64 of shape (kinds, m, m), of sum 1.
        groups: The cluster of each over-cluster, int64 of shape (m,).
        clusters: Number of clusters k.
    """
    grouped = _sum_by_group(joint, groups, clusters)
    return float(_ratio(grouped.diagonal(dim1=-2, dim2=-1), grouped.sum(dim=-1)).sum())


def _sum_by_group(joint: Tensor, groups: Tensor, clusters: int) -> Tensor:
    """Sum J over the over-clusters of each pair of clusters: (kinds, m, m) to (kinds, k, k)."""
    member = F.one_hot(groups, clusters).double()
    return member.T @ joint @ member


def _move_overclusters(joint: Tensor, initial: Tensor, clusters: int, rule: Rule) -> Tensor:
    """Move single over-clusters between clusters as long as the measure grows.

    Takes and returns merges: the cluster of each over-cluster, int64 of shape (merges, m).
    """
    groups, over = initial.clone(), initial.shape[1]
    # Number of over-clusters tried since the last move, for each merge.
    tried = torch.zeros(len(groups), dtype=torch.int64)
    moving = 0
    while len(going := (tried < over).nonzero().flatten()):
        others = F.one_hot(groups[going], clusters).double()
        others[:, moving] = 0
        gains = _information_after(joint, others, moving)
        if rule == "both":
            gains = _combine(_association_after(joint, others, moving), gains)
        most, best = gains.max(dim=1)
        now = groups[going, moving]
        grows = most > gains.gather(1, now.unsqueeze(1)).squeeze(1) + _SMALLEST_GAIN
        # The last over-cluster of a cluster stays, so that there are k clusters.
        grows &= (groups[going] == now.unsqueeze(1)).sum(dim=1) > 1
        groups[going, moving] = torch.where(grows, best, now)
        tried[going] = torch.where(grows, 0, tried[going] + 1)
        moving = (moving + 1) % over
    return groups


def _information_after(joint: Tensor, member: Tensor, moving: int) -> Tensor:
    """Return mutual information, up to a constant, after an over-cluster moves to each cluster.

    Args:
        joint: J of each kind of pairs, (kinds, m, m).
        member: Several merges without the over-cluster: memberships, 0 or 1, (merges, m, k).
        moving: Index of the over-cluster.

    Returns:
        float64 of shape (merges, k).
    """
    others = member.mT @ (joint.unsqueeze(1) @ member)
    to_others = torch.einsum("jm,smk->jsk", joint[:, moving], member)
    shares = others.sum(dim=-1) + to_others
    row, itself = joint[:, moving].sum(dim=-1), joint[:, moving, moving]
    grown = _x_log_x(shares + row[:, None, None]) - _x_log_x(shares)
    itself = itself[:, None, None]
    return (_gain_of_rows(others, to_others, itself) - 2 * grown).sum(dim=0)


def _gain_of_rows(others: Tensor, added: Tensor, itself: Tensor) -> Tensor:
    """Return for each g how Σ J log J grows if row and column g get ``added``, J_gg ``itself``."""
    grown = _x_log_x(others + added.unsqueeze(-2)) - _x_log_x(others)
    own = others.diagonal(dim1=-2, dim2=-1)
    return (
        2 * (grown.sum(dim=-1) - grown.diagonal(dim1=-2, dim2=-1))
        + _x_log_x(own + 2 * added + itself)
        - _x_log_x(own)
    )


def _association_after(joint: Tensor, member: Tensor, moving: int) -> Tensor:
    """Return how the association A grows if an over-cluster joins each cluster, (merges, k).

    Arguments are those of ``_information_after``.
    """
    inside = ((joint.unsqueeze(1) @ member) * member).sum(dim=-2)
    share = torch.einsum("jm,smk->jsk", joint.sum(dim=-1), member)
    between = torch.einsum("jm,smk->jsk", joint[:, moving], member)
    itself, row = joint[:, moving, moving], joint[:, moving].sum(dim=-1)
    after = inside + 2 * between + itself[:, None, None]
    return (_ratio(after, share + row[:, None, None]) - _ratio(inside, share)).sum(dim=0)


def _ratio(inside: Tensor, share: Tensor) -> Tensor:
    """Return J_gg / q_g: the share of a cluster's pairs that stay inside; 0 if it has none."""
    return inside / share.clamp(min=1e-300)


def _losses_of_association(joint: Tensor) -> Tensor:
    """Return how much the association falls if clusters are joined: (k, k); ignore the diagonal."""
    inside, share = joint.diagonal(dim1=-2, dim2=-1), joint.sum(dim=-1)
    alone = _ratio(inside, share)
    both = _ratio(
        inside.unsqueeze(-1) + inside.unsqueeze(-2) + 2 * joint,
        share.unsqueeze(-1) + share.unsqueeze(-2),
    )
    return (alone.unsqueeze(-1) + alone.unsqueeze(-2) - both).sum(dim=0)


def mutual_information(joint: Tensor, groups: Tensor, clusters: int) -> float:
    """Return the mutual information I of a merge, in nats, summed over kinds of pairs.

    Arguments are those of ``association``.
    """
    grouped = _sum_by_group(joint, groups, clusters)
    return float(_x_log_x(grouped).sum() - 2 * _x_log_x(grouped.sum(dim=-1)).sum())


def evidence(folds: Tensor, fewest: int, most: int) -> Tensor:
    """Return the evidence E(k), see the module, for every candidate number k of clusters, in nats.

    Args:
        folds: Sums of p(x) p(x′)ᵀ over neighbours, for each fold (random subset) of the images, of
            shape (folds, m, m) with m ≥ ``most`` + 3.
        fewest: Smallest candidate, at least 2.
        most: Largest candidate.

    Returns:
        float64 of shape (most − fewest + 1,), on the CPU.
    """
    gains = scaled_gains(folds, most + _WINDOW)
    # Element 0 is that of two clusters.
    ends = range(fewest - 1, most)
    return torch.stack(
        [gains[max(0, n - _WINDOW) : n].mean() - gains[n : n + _WINDOW].mean() for n in ends]
    )


def scaled_gains(folds: Tensor, most: int) -> Tensor:
    """Return k·G(k), with G(k) the gain of the k-th cluster, for k from 2 to ``most``.

    The result is float64 of shape (most − 1,); ``folds`` is that of ``evidence``.
    """
    everyone = range(len(folds))
    halves = [list(half) for half in combinations(everyone, len(folds) // 2)]
    joints = {
        tuple(half): joint_distribution(folds[half].sum(dim=0, keepdim=True)) for half in halves
    }
    total = torch.zeros(most)
    for half, joint in joints.items():
        held_out = joints[tuple(fold for fold in everyone if fold not in half)]
        path = agglomerate(joint)[:most]
        known = [mutual_information(held_out, g, k) for k, g in enumerate(path, start=1)]
        total = total + torch.tensor(known, dtype=torch.float64) / len(joints)
    return total.diff() * torch.arange(2, most + 1)


def _x_log_x(x: Tensor) -> Tensor:
    """Return x log x of each element, 0 at 0."""
    terms: Tensor = torch.special.xlogy(x, x)
    return terms


def renumber_like(groups: Tensor, before: Tensor, shares: Tensor) -> Tensor:
    """Renumber clusters so that as many images as possible keep their earlier cluster number.

    Args:
        groups: The cluster of each over-cluster, int64 of shape (m,), from 0 to k − 1.
        before: The earlier clusters, int64 of shape (m,).
        shares: Number or share of images of each over-cluster, float64 of shape (m,).

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


def _renumber(groups: Tensor) -> Tensor:
    """Renumber clusters in the order of their first over-clusters."""
    numbers: dict[int, int] = {}
    return torch.tensor([numbers.setdefault(group, len(numbers)) for group in groups.tolist()])
