"""Learning of a graph whose connected components are the clusters.

Sources: Nie, Wang and Huang, *Clustering and Projected Clustering with Adaptive Neighbors* (KDD
2014), CAN; Nie, Wang, Jordan and Huang, *The Constrained Laplacian Rank Algorithm* (AAAI 2016),
CLR. A graph S is float64 of shape (n, n) on the CPU: row i has the weights of the edges from i.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_STEPS = 30
"""Largest number of steps, as in the public code."""


def squared_distances(points: Tensor) -> Tensor:
    """Return the squared Euclidean distance of each pair of points, of shape (n, n)."""
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").square()


def neighbour_graph(distances: Tensor, m: int) -> Tensor:
    """Weight the edges from each record to its m nearest (CAN, solution for S).

    s_ij = (d_i,m+1 - d_ij)₊ / (m d_i,m+1 - Σ_h≤m d_ih); equal weights if all of these d are equal.

    Args:
        distances: Squared distances d, of shape (n, n).
        m: Number of neighbours; at most n - 2 are used, or the only one of two records.
    """
    n = len(distances)
    m = min(m, n - 2)
    if m < 1:
        return 1 - torch.eye(n, dtype=torch.float64)
    nearest, others = distances.clone().fill_diagonal_(torch.inf).sort(dim=1, stable=True)
    gaps = nearest[:, m : m + 1] - nearest[:, :m]
    total = gaps.sum(dim=1, keepdim=True)
    weights = torch.where(total > 0, gaps / total, 1 / m)
    return torch.zeros_like(distances).scatter_(1, others[:, :m], weights)


def project_on_simplex(rows: Tensor) -> Tensor:
    """Project each row, of shape (n, d), onto the simplex: entries of at least 0 whose sum is 1."""
    falling = rows.sort(dim=1, descending=True).values
    excess = (falling.cumsum(dim=1) - 1) / torch.arange(1, rows.shape[1] + 1)
    last = (falling > excess).sum(dim=1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0)


def components_of(graph: Tensor) -> tuple[int, Tensor]:
    """Return the number of connected components, and that of each record, int64 of shape (n,)."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(csr_matrix(graph.numpy()), directed=False)
    return int(count), torch.from_numpy(labels).long()


def smallest_eigenvectors(graph: Tensor, count: int) -> Tensor:
    """Return F, eigenvectors of the smallest eigenvalues of the Laplacian of (S + Sᵀ)/2.

    Its shape is (n, count).
    """
    from scipy.linalg import eigh

    mean = (graph + graph.T) / 2
    laplacian = torch.diag(mean.sum(dim=1)) - mean
    return torch.from_numpy(eigh(laplacian.numpy(), subset_by_index=[0, count - 1])[1])


def learn_structure(
    solve: Callable[[Tensor], Tensor], graph: Tensor, components: int, gamma: float
) -> Tensor:
    """Alternate S and F until S has c components: its Laplacian has rank n - c (CAN and CLR).

    γ is doubled while there are fewer, and halved, with the same F, while there are more.

    Args:
        solve: Function that returns the best S for a penalty γ‖f_i - f_j‖² of each pair.
        graph: The first S, which is returned if it has as many components.
        components: Wanted number c of components.
        gamma: The first γ.
    """
    components = min(components, len(graph))
    count, _ = components_of(graph)
    if count >= components:
        return graph
    for _ in range(_STEPS):
        if count < components:
            penalty = squared_distances(smallest_eigenvectors(graph, components))
        graph = solve(gamma * penalty)
        count, _ = components_of(graph)
        if count == components:
            break
        gamma *= 2 if count < components else 0.5
    return graph
