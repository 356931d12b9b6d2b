"""Construction of a run of federated clustering from its configuration."""

from dataclasses import fields, replace
from functools import partial
from typing import Any, get_origin

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.client_data import divide, make_client
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.epilogue import ClusteringEpilogue
from ccfcpp.clustering.evaluation.evaluator import ClusteringEvaluator
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.clustering.setup import load_data, number_of_clusters
from ccfcpp.clustering.vector_checks import check_vectors
from ccfcpp.core.errors import UsageError
from ccfcpp.data.open import AnyData
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.update_format import find_unknown_part
from ccfcpp.runs.run import LocalRun
from ccfcpp.runs.setting import Setting

ClusteringRun = LocalRun[ClusteringAlgorithm[Any], ClusteringEvaluator]


def clustering_run(
    config: ClusterConfig, data: AnyData | None = None, number: int | None = None
) -> ClusteringRun:
    """Make a run from its configuration, which is checked before any file is written.

    Args:
        config: The configuration.
        data: The images or vectors; None: those that the configuration names are read.
        number: Round whose connected clients are the run's clients; None: the last round.

    Raises:
        UsageError: The configuration does not fit the data or the machine.
    """
    setting = Setting.of(config)
    own = load_data(config) if data is None else data
    number_of_clusters(config, own)  # its error names all missing settings, so it comes first
    holdings = divide(config, own, setting.randomness)
    clusters = number_of_clusters(config, holdings.data)
    numbers = range(len(holdings.parts))
    connected = setting.availability.connected(numbers, setting.randomness, number)
    holdings = replace(holdings, data=holdings.data.to(setting.device))
    # Clients without samples take no part.
    clients = [
        make_client(holdings.data, number, holdings.names[number], holdings.parts[number])
        for number in connected
        if len(holdings.parts[number]) > 0
    ]
    if not clients:
        raise UsageError(
            f"no connected client holds a{'n' * (holdings.data.unit[0] in 'aeiou')} "
            f"{holdings.data.unit}: give fewer clients"
        )
    problem = Problem(
        config,
        tuple(holdings.data.values.shape[1:]),
        clusters,
        setting.device,
        sum(map(len, clients)),
        config.fewest_clusters,
        config.grows,
        config.privacy.is_on,
        config.privacy.level != "none",
    )
    with METHODS.blaming(config.method):
        algorithm = make_algorithm(problem)
        if problem.has_vectors:
            check_vectors(config, holdings.data.values)
        noisy = setting.privacy.level != "none"
        # If clients join late, the run is made again from the same samples.
        kept = own if config.availability.late else None
        run = LocalRun(
            setting,
            algorithm,
            holdings,
            clients,
            ClusteringEvaluator(config, problem, algorithm, holdings, clients, connected),
            None if noisy else ClusteringEpilogue(algorithm, clusters),
            connected,
            partial(clustering_run, config, kept),
            number,
        )
        if config.method not in METHODS.own():
            _check_system(run)
    return run


def _check_system(run: ClusteringRun) -> None:
    """Check that a system of an installed package implements what a run needs.

    Raises:
        UsageError: The state has no centroids, an update lacks a declared field, or clients have
            no code for an exchange.
    """
    algorithm, state = run.algorithm, run.initial_state
    if not hasattr(state, "centroids"):
        raise UsageError(
            f"method {run.system!r}: its state has no field 'centroids': add it; it is None until "
            "there are some"
        )
    unpack(algorithm.state_type, pack(state))
    works = algorithm.exchanges(0, state)
    for work in works:
        exchange = work.exchange
        names = [field.name for field in fields(get_origin(exchange.update) or exchange.update)]
        if unknown := find_unknown_part(exchange.parts, names):
            raise UsageError(
                f"method {run.system!r}: exchange {exchange.name!r} declares a part {unknown!r}, "
                f"and {exchange.update.__name__} has no such field: it has {', '.join(names)}"
            )
        if exchange.name not in run.client_side.works:
            raise UsageError(
                f"method {run.system!r}: client_side() has no work for exchange {exchange.name!r}"
            )
    if works and works[0].is_due(state):  # later messages depend on updates
        works[0].update_format(works[0].broadcast(state))
