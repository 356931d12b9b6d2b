"""Settings of SPP-FGC: the clients' graphs and prototypes, and how the server links them."""

from typing import Annotated

from ccfcpp.core.config import Affects, Positive, PositiveNumber, Section, Weight


class SppConfig(Section):
    """Settings of SPP-FGC."""

    neighbours: Positive = 10
    """Number of neighbours of a record in its client's graph, m in the paper."""
    components: Positive | None = None
    """Number of components that each client's graph is cut into; null: it is not cut, as in the
    authors' code, since a client need not hold all clusters."""
    prototypes: Positive | None = None
    """Number of Gaussians in a client's mixture; null: the number of clusters."""
    noise: Weight = 0.1
    """Scale of the Laplace noise that is added to each coordinate of a prototype, in standard
    deviations of the client's records from their prototypes. It bounds no privacy loss."""
    links: PositiveNumber = 5.0
    """Sum of a record's weights to the records of an equal prototype of another client; those to
    its own neighbours sum to 1."""
    records: Annotated[Positive, Affects("which runs are refused")] = 5000
    """Largest number of records of all clients: the server's graph has a weight for each pair, and
    a run of 5,000 takes 2 GB of memory."""
