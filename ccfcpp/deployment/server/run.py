"""A deployed run, whose clients are on other machines."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.epilogue import ClusteringEpilogue
from ccfcpp.clustering.preprocessing.make_algorithm import make_algorithm
from ccfcpp.core.config import RunConfig
from ccfcpp.deployment.link.algorithms import (
    COUNTS,
    AnyAlgorithm,
    classification_algorithm,
    clustering_problem,
    counts_exchange,
)
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.evaluator import CountsEvaluator
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.transport import Transport
from ccfcpp.robust.config import AttackConfig
from ccfcpp.runs.paths import RunSetting, Summary
from ccfcpp.runs.run import Run
from ccfcpp.runs.setting import Safeguards, Setting
from supervised.config import ClassifyConfig


class DeployedRun(Run[Algorithm[Any], CountsEvaluator]):
    """Server side of a run whose images are at clients on other machines.

    Args:
        config: Configuration of the run.
        enrolment: The run's clients and its description.
        channel: Connection to the clients.
        enrol: Returns a larger enrolment if clients have joined since the last call; else None.
    """

    def __init__(
        self,
        config: RunConfig,
        enrolment: Enrolment,
        channel: Channel,
        enrol: Callable[[], Enrolment | None] = lambda: None,
    ) -> None:
        assert isinstance(config, ClusterConfig | ClassifyConfig)
        setting, spec, members = Setting.of(config), enrolment.spec, enrolment.members
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
        self.spec, self._everyone, self._enrol = spec, members, enrol
        self.deployed = Deployed(
            channel,
            client_spec,
            enrolment.run,
            exchanges,
            setting.device,
            enrolment.sessions,
            present,
        )
        evaluator = CountsEvaluator(
            config, spec, algorithm, present, len(absent), self.deployed, enrolment.skipped
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
        enrolment = self._enrol()
        if enrolment is None:
            return None
        larger = DeployedRun(self.config, enrolment, self.deployed.channel, self._enrol)
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
