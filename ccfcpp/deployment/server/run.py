"""A deployed run, whose clients are on other machines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.epilogue import ClusteringEpilogue
from ccfcpp.clustering.preprocessing.phased import make_algorithm
from ccfcpp.core.config import RunConfig
from ccfcpp.deployment.link.algorithms import (
    COUNTS,
    AnyAlgorithm,
    classification_algorithm,
    clustering_problem,
    counts_exchange,
)
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.evaluator import CountsEvaluator
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.transport import Transport
from ccfcpp.robust.config import AttackConfig
from ccfcpp.runs.paths import RunSetting, Summary
from ccfcpp.runs.run import Run
from ccfcpp.runs.setting import Safeguards, Setting
from supervised.config import ClassifyConfig

Exchanges = Mapping[str, Exchange[Any, Any]]
Connect = Callable[[RunSpec, Exchanges, torch.device], Deployed]
"""Returns the transport to the clients, given the run's description for clients, its exchanges by
name and the server's device."""


class DeployedRun(Run[Algorithm[Any], CountsEvaluator]):
    """Server side of a run whose images are at clients on other machines.

    Args:
        config: Configuration of the run.
        spec: Description of the run.
        members: The clients that have been admitted.
        connect: Returns the transport to these clients.
        skipped: Number of files that the clients have left out.
        larger: Returns the run with the clients that have joined since the last round; None if
            there are none.
    """

    def __init__(
        self,
        config: RunConfig,
        spec: RunSpec,
        members: Sequence[Member],
        connect: Connect,
        skipped: int = 0,
        larger: "Callable[[], DeployedRun | None]" = lambda: None,
    ) -> None:
        assert isinstance(config, ClusterConfig | ClassifyConfig)
        setting = Setting.of(config)
        config.section(AttackConfig).refuse_deployed()
        numbers = [member.id for member in members]
        connected = setting.availability.connected(numbers, setting.randomness)
        present = [member for member in members if member.id in connected]
        absent = [member.name for member in members if member.id not in connected]
        epilogue = None
        if isinstance(config, ClassifyConfig):
            algorithm: AnyAlgorithm = classification_algorithm(config, spec, setting.device)
        else:
            algorithm = make_algorithm(clustering_problem(config, spec, setting.device))
            if setting.privacy.level == "none":
                epilogue = ClusteringEpilogue(algorithm, spec.clusters)
        context = ClientContext(max(member.samples for member in present), together=1)
        # Each client trains separately.
        side = replace(algorithm.client_side(context), cohort=None)
        around = Safeguards.of(setting, algorithm, side.works.values(), present)
        works = side.works
        if epilogue is not None:
            works = {**works, **epilogue.client_works(context)}
        if around.protection is not None:
            works = around.protection.works(works)
        exchanges = {name: work.exchange for name, work in works.items()}
        exchanges[COUNTS] = counts_exchange(algorithm)
        mechanism = around.protection.mechanism if around.protection else None
        # Clients compute the privacy loss of their images themselves, from this noise.
        client_spec = spec.with_noise(mechanism.budget.noise) if mechanism else spec
        self.spec, self._everyone, self._larger = spec, members, larger
        self.deployed = connect(client_spec, exchanges, setting.device)
        evaluator = CountsEvaluator(
            config, spec, algorithm, present, len(absent), self.deployed, skipped
        )
        super().__init__(setting, algorithm, side, present, around, evaluator, epilogue, absent)

    def describe_setting(self) -> RunSetting:
        """Return the content of ``setting.json``, for the report; clients' labels are unknown."""
        return RunSetting(
            self.algorithm.rounds,
            self.evaluator.describe(),
            {str(member.id): member.name for member in self._everyone},
            [member.id for member in self.members],
            list(self.spec.classes),
            None,
        )

    def for_round(self, number: int) -> "DeployedRun | None":
        """Return the run with all clients if some have joined since the last round; else None."""
        larger = self._larger()
        if larger is not None:
            larger.deployed.take_over(self.deployed)
        return larger

    def transport(
        self, memories: ClientMemories, should_stop: Callable[[], bool] = lambda: False
    ) -> Deployed:
        """Return the transport to the clients; they keep their local states, not ``memories``."""
        self.deployed.stopped = should_stop
        return self.deployed

    def run_epilogue(
        self, federation: Federation[Any, Transport], state: Any
    ) -> tuple[Any, Summary]:
        """Run the exchanges after the last round; wait at most ``Timeouts.linger`` for clients."""
        self.deployed.patience = self.deployed.channel.timeouts.linger
        return super().run_epilogue(federation, state)
