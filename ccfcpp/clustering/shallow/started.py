"""Systems that begin where k-means of a codebook ends, found by sums over all clients."""

from abc import abstractmethod
from collections.abc import Sequence

from ccfcpp.clustering.algorithm import found_number
from ccfcpp.clustering.kmeans.start import S, start_works
from ccfcpp.clustering.shallow.pixels import PixelClustering
from ccfcpp.engine.exchange import AnyServerWork


class StartedBySums(PixelClustering[S]):
    """Base class of systems whose first round finds centroids; the steps come in later rounds.

    A round without centroids begins the start again: in the one before, too few clients answered.
    """

    starts = 1
    """How many are tried; the one with the least squared error of k-means goes on."""

    @abstractmethod
    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """The server's work in a round, once there are centroids."""

    def exchanges(self, number: int, state: S) -> Sequence[AnyServerWork]:
        """Steps, or what finds the first centroids."""
        return self.start() if state.centroids is None else self.steps(number)

    def plan(self, state: S) -> list[Sequence[AnyServerWork]]:
        """Steps in each round; before them the start, if need be, of points that are not few."""
        start = [self.usual_start()] if state.centroids is None else []
        return [*start, *map(self.steps, range(len(start), self.rounds))]

    def start(self) -> Sequence[AnyServerWork]:
        """The server's work until there are centroids."""
        return start_works(self.problem, self.rule.dimensions, self.starts)

    def usual_start(self) -> Sequence[AnyServerWork]:
        """Return the start without what only few points need."""
        return [work for work in self.start() if not getattr(work, "again", False)]

    def found(self, state: S) -> dict[str, object]:
        """The number of clusters, and what speaks for each, where it was to be found."""
        evidence, centroids = state.evidence, state.centroids
        if evidence is None or centroids is None:
            return {}
        if not bool(evidence.any()):  # All samples are alike.
            return {"clusters": len(centroids)}
        return found_number(evidence, self.problem.fewest, len(centroids))
