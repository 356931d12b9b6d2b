"""The run of an experiment, which all systems share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic

from torch import Tensor

from ccfcpp.core.config import MethodConfig
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.tables import Rows
from ccfcpp.core.units import counted
from ccfcpp.data.images import Samples
from ccfcpp.engine.algorithm import Algorithm, Crew, Epilogue
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AnyExchange, ClientSide, State
from ccfcpp.engine.federation import Federation, LocalModelObserver, RoundReport
from ccfcpp.engine.memories import ClientMemories, memory_budget
from ccfcpp.engine.payload import pack
from ccfcpp.engine.stages import Stage
from ccfcpp.engine.transport import InProcess, Transport
from ccfcpp.models.state import ModelState
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.images import bounding_of
from ccfcpp.privacy.noise.levels import ClientLevel, ImageLevel, sampling_of
from ccfcpp.privacy.protection import Protection, check_fits
from ccfcpp.robust.attacks import Attack
from ccfcpp.robust.config import AttackConfig, DefenceConfig
from ccfcpp.robust.defence import Defence
from ccfcpp.runs.environment import check_precision, choose_device, describe_environment
from ccfcpp.runs.folder import Arrays, RunFolder
from ccfcpp.runs.local_spectra import LocalSpectra
from ccfcpp.runs.paths import Json, RunSetting, Summary
from ccfcpp.runs.store import History, RunStore
from ccfcpp.runs.tracking import check_tracker

Scores = dict[str, float]
Observer = Callable[[RoundReport, Scores], None]


class Experiment(ABC, Generic[State]):
    """Clients, an algorithm, and the run of its rounds.

    A subclass sets clients and algorithm, scores a state, and makes the results of the last one.

    Attributes:
        system: Name of the system or method that runs.
        device: Where the computation runs.
        track: For which tracker rounds are logged too.
        randomness: The run's source of random numbers.
        availability: Which clients take part.
        privacy: Settings of privacy.
        attack: Settings of hostile clients.
        defence: Settings of the server's defence.
        data: All images.
        parts: Indices of each client's images, also of clients that are not connected.
        absent_names: Names of the clients that are absent for the whole run.
        clients: The connected clients that hold images.
        algorithm: The system.
        images_key: Key of the number of images that are used for training.
    """

    images_key: ClassVar[str] = "data.images"
    data: Samples
    parts: list[Tensor]
    absent_names: list[str]
    clients: list[Client]
    algorithm: Algorithm[State]
    _should_stop: Callable[[], bool]

    def __init__(self, config: MethodConfig) -> None:
        self.system = config.method
        self.device = choose_device(config.device)
        check_precision(config.compute.precision, self.device)
        check_tracker(config.track)
        self.track = config.track
        self.randomness = Randomness(config.seed)
        self.privacy = config.section(PrivacyConfig)
        self.attack = config.section(AttackConfig)
        self.defence = config.section(DefenceConfig)
        kind = sampling_of(self.privacy)
        self.availability: Availability = kind(**config.availability.model_dump())

    @abstractmethod
    def scores(self, number: int, state: State, memories: ClientMemories) -> Scores:
        """Compute the scores after round ``number``; none where none are due."""

    @abstractmethod
    def results(
        self, state: State, memories: ClientMemories, local: LocalSpectra, told: Any
    ) -> tuple[Summary, Arrays]:
        """Return the last state's part of the summary, and arrays to save.

        ``told`` is what the epilogue has told; None where there is none.
        """

    @abstractmethod
    def local_representations(self, client: int, model: ModelState) -> Tensor | None:
        """Represent the images on which models are compared, by the model that a client sent.

        Returns:
            Floats of shape (images, dimensions); None where the model cannot be compared.
        """

    def image_results(self, state: State, memories: ClientMemories) -> Arrays:
        """Return what a state makes of the images, for the report of a run that was stopped."""
        return {}

    def pictures(self, state: State) -> Mapping[str, Tensor]:
        """Return pictures of a state by name, each uint8 of shape (height, width, 3)."""
        return {}

    def tables(self, arrays: Arrays) -> Mapping[str, Rows]:
        """Return tables of the results by name, for people."""
        return {}

    @property
    def skipped(self) -> Rows:
        """The files that were left out, and why."""
        return self.data.reading.rows if self.data.reading else []

    @abstractmethod
    def describe(self) -> Json:
        """Return the setting, for the summary."""

    def client_name(self, number: int) -> str:
        """Return the name of a client."""
        return f"client {number}"

    def setting(self) -> RunSetting:
        """Return what the report tells beside log and results."""
        labels, names = self.data.labels, self.data.classes
        held = [] if labels is None else [labels.cpu()[part] for part in self.parts]
        return RunSetting(
            self.algorithm.rounds,
            self.describe(),
            {str(number): self.client_name(number) for number in range(len(self.parts))},
            [client.id for client in self.clients],
            list(names),
            [own.bincount(minlength=len(names)).tolist() for own in held] or None,
        )

    @property
    def epilogue(self) -> Epilogue | None:
        """Exchanges after the last round, if any."""
        return None

    def saved(self, state: State, told: Any) -> Mapping[str, Tensor]:
        """Return the tensors of the model's file."""
        return pack(state)

    def model_facts(self) -> dict[str, str]:
        """Return what using the model needs beside the configuration, for its file's header."""
        return {}

    def run(
        self,
        folder: RunFolder,
        observe: Observer = lambda report, scores: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Summary:
        """Run all rounds, or those that are left, and write the results.

        Where clients come after the start, the run goes on as a resumed one does, with them.

        Args:
            folder: The run's folder; an interrupted run goes on after its last checkpoint.
            observe: Called after each round with its report and its scores.
            should_stop: Called after each round; a stopped run is checkpointed first.

        Returns:
            The content of ``summary.json``.

        Raises:
            StoppedError: ``should_stop`` returned true.
            FederationError: The rounds left no usable result, or every update was refused.
        """
        folder.add_environment(describe_environment(self.device))
        if self.skipped:
            folder.write_table("skipped", self.skipped)
        found: Summary | Experiment[State] = self
        while isinstance(found, Experiment):
            found._should_stop = should_stop
            found = found._rounds(folder, observe)
        return found

    def check(self) -> None:
        """Refuse before the run what does not fit its algorithm or its clients."""
        _ = self.attackers, self.defender, self.protection
        late, rounds = self.availability.late, self.availability.late_rounds
        if late and self.privacy.level != "none":
            raise UsageError(
                f"availability.late = {list(late)} is refused with privacy.level = "
                f"{self.privacy.level}: noise is for a fixed number of clients; leave one of them "
                "out"
            )
        if late and rounds >= self.algorithm.rounds:
            raise UsageError(
                f"availability.late_rounds = {rounds} is refused: the run has "
                f"{counted(self.algorithm.rounds, 'round')}; give fewer"
            )

    def as_of(self, number: int) -> "Experiment[State] | None":
        """The run with the clients that are there from a round on; None where these are its own."""
        return None

    def _rounds(self, folder: RunFolder, observe: Observer) -> "Summary | Experiment[State]":
        """The summary; or the run with other clients, which goes on from the last checkpoint."""
        memories = self._memories(folder.checkpoint.parent)
        transport = self.transport(memories)
        store = RunStore(folder, transport, self.algorithm.state_type, self.device)
        checkpoint = store.restore()
        if checkpoint is None:
            state, history, first_round = self._initial_state, History(), 0
        else:
            state, history = checkpoint.state, History(**checkpoint.facts)
            first_round = checkpoint.next_round
        history.hold(self.clients)
        if other := self.as_of(first_round):
            return other
        folder.write_setting(self.setting())
        if self.protection is not None:
            self.protection.open(folder.path / "privacy.jsonl", goes_on=first_round > 0)
        last_round = self.algorithm.rounds - 1
        local = LocalSpectra(last_round, self.local_representations, history.local_spectra)
        federation = self.federation(transport, local)
        federation.silent = folder.absent_in_last_round()
        federation.taken = set(history.taken)
        with folder.log(self.track) as log_round:
            for state, report in federation.run(state, first_round):  # noqa: B020 - the state moves on
                with section("scores"):
                    scores = self.scores(report.round, state, memories)
                history.add(report)
                history.taken = sorted(federation.taken)
                log_round(report.line() | {"scores": scores})
                observe(report, scores)
                if federation.fault:  # The last checkpoint stays; the loop says why it ends.
                    continue
                stopping = self._should_stop()
                over = federation.is_over(state, report.round + 1)
                other = None if stopping or over else self.as_of(report.round + 1)
                if stopping or over or other or store.is_due():
                    store.commit(report.round, state, vars(history))
                if stopping and not over:
                    folder.write_arrays(self.image_results(state, memories))
                    raise StoppedError
                if other:
                    return other
        return self._summary(folder, federation, state, memories, local, history)

    def _summary(
        self,
        folder: RunFolder,
        federation: Federation[State, Transport],
        state: State,
        memories: ClientMemories,
        local: LocalSpectra,
        history: History,
    ) -> Summary:
        told, ended = self.ended(federation, state)
        result, arrays = self.results(state, memories, local, told)
        summary = ended | self.describe() | history.describe(self.members) | result
        if self.cohort is not None:
            summary["cohort"] = self.cohort
        if self.protection is not None:
            summary["privacy"] = self.protection.describe()
        if self.attackers is not None:
            summary["attack"] = self.attackers.describe()
        if self.defender is not None:
            summary["defence"] = self.defence.rule
        summary["out"] = str(folder.path)
        for name, rows in self.tables(arrays).items():
            folder.write_table(name, rows)
        model = self.saved(state, told)
        folder.write_results(summary, model, arrays, self.pictures(state), self.model_facts())
        return summary

    def ended(self, federation: Federation[State, Transport], state: State) -> tuple[Any, Summary]:
        """Run the exchanges after the last round; their bytes are no part of the rounds'.

        Returns:
            What they have told, and what the summary says of it.
        """
        epilogue = self.epilogue
        if epilogue is None:
            return None, {}
        known = epilogue.begin(state)
        if known is None:
            return None, epilogue.describe(None)
        known, report = federation.run_works(epilogue.works(known), known, self.algorithm.rounds)
        return known, epilogue.describe(known) | {
            "epilogue": {
                "clients": len(report.clients),
                "bytes_down": report.bytes_down,
                "bytes_up": report.bytes_up,
            }
        }

    def planned_exchanges(self) -> list[int]:
        """Number of exchanges in each round of the whole run."""
        plan = self.algorithm.plan(self._initial_state)
        return [sum(not work.exchange.once for work in works) for works in plan]

    def trained(self, verbose: bool = False) -> tuple[State, int]:
        """Run all rounds in memory, and return the last state and the number of rounds.

        Args:
            verbose: Whether to print a line for each round.

        Raises:
            UsageError: Some clients come late, for which a run needs a folder.
        """
        if self.availability.late:
            raise UsageError("availability.late has no effect here: leave it out")
        state, rounds = self._initial_state, 0
        for after, report in self.federation().run(state):
            state, rounds = after, report.round + 1
            if verbose:
                own = report.figures.get("loss")
                loss = "" if own is None else f"loss {own:+.4f}, "
                print(f"round {rounds}/{self.algorithm.rounds}: {loss}{report.seconds:.1f} s")
        return state, rounds

    @property
    def members(self) -> list[Member]:
        """The connected clients, as the server knows them."""
        return [client.member for client in self.clients]

    @property
    def cohort(self) -> int | None:
        """Number of clients that are trained side by side; None where nothing is trained."""
        return self.client_side.cohort

    @cached_property
    def client_side(self) -> ClientSide:
        """The system's work of the clients, all of which are in this process."""
        return self.algorithm.client_side(self._crew)

    @property
    def _crew(self) -> Crew:
        together = self.availability.invited(len(self.clients))
        least, bounding = self.privacy.smallest_count, bounding_of(self.privacy)
        alike = self.privacy.level == "client"
        return Crew.of(self.clients, together, bounding, least, alike)

    def transport(self, memories: ClientMemories) -> Transport:
        """Return the clients of this process, with protection and attacks around their work."""
        works = self.client_side.works
        if self.attackers is not None:
            works = self.attackers.works(works)
        if self.epilogue is not None:
            works = {**works, **self.epilogue.client_works(self._crew)}
        merges = self.attackers is None and self.defender is None
        if self.protection:
            works, merges = self.protection.works(works), merges and self.protection.merges
        side = ClientSide(works, self.client_side.cohort)
        varies = self.availability.varies
        return InProcess(self.clients, side, memories, self.randomness, merges, varies)

    def federation(
        self, transport: Transport | None = None, observer: LocalModelObserver | None = None
    ) -> Federation[State, Transport]:
        """Return the federation of clients and server.

        Args:
            transport: Delivers to the clients; by default they keep no memories on disk.
            observer: Called with the local models.
        """
        protection = self.protection
        stages: list[Stage] = [protection.stage] if protection else []
        if self.defender is not None:
            stages.append(self.defender)
        return Federation(
            self.system,
            self.algorithm,
            self.attackers.known(self.members) if self.attackers else self.members,
            self.availability,
            self.randomness,
            transport or self.transport(self._memories(None)),
            [
                *([protection.stage] if protection else []),
                *([self.defender] if self.defender else []),
            ],
            protection.mechanism if protection else None,
            observer,
        )

    @cached_property
    def exchanges(self) -> Sequence[AnyExchange]:
        """All exchanges of the system."""
        return [work.exchange for work in self.client_side.works.values()]

    @cached_property
    def attackers(self) -> Attack | None:
        """The attack on this run, if any; ``UsageError`` where it does not fit the system."""
        if not self.attack.is_on:
            return None
        return Attack(self.attack, self.system, self.exchanges, self.members, self.randomness)

    @cached_property
    def defender(self) -> Defence | None:
        """The server's defence, if any; ``UsageError`` where it does not fit the run."""
        if not self.defence.is_on:
            return None
        if self.privacy.is_on:
            raise UsageError(
                f"defence.rule = {self.defence.rule} needs each client's update, and with "
                "privacy.secure_sums or privacy.level the server gets their sum alone: leave one "
                "of them out"
            )
        invited = self.availability.invited(len(self.members))
        return Defence(self.defence, self.system, self.exchanges, invited)

    @cached_property
    def protection(self) -> Protection | None:
        """Protection of privacy, if any; ``UsageError`` where it does not fit the system."""
        if not self.privacy.is_on:
            return None
        check_fits(self.privacy, self.system, self.exchanges)
        mechanism = None if self.privacy.level == "none" else self._mechanism()
        return Protection(self.privacy, self.system, self.exchanges, len(self.members), mechanism)

    def _mechanism(self) -> ClientLevel | ImageLevel:
        works = self.algorithm.plan(self.algorithm.initial_state(self.randomness))
        if self.privacy.level == "image":
            asked, held = self.exchanges, sum(member.samples for member in self.members)
            return ImageLevel(self.privacy, works, self.randomness, self.system, asked, held)
        share, dropout = self.availability.sample_fraction, self.availability.dropout_rate
        clients = len(self.members)
        return ClientLevel(self.privacy, works, self.randomness, share, clients, dropout)

    def _memories(self, folder: Path | None) -> ClientMemories:
        return ClientMemories(self.device, memory_budget(self.device), folder)

    @property
    def _initial_state(self) -> State:
        return self.algorithm.initial_state(self.randomness)


AnyExperiment = Experiment[Any]
"""An experiment with any kind of state."""
