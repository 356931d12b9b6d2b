"""A run: the loop over its rounds, its checkpoints, and its results."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import Tensor

from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.tables import Rows
from ccfcpp.core.torchrun import process_count, rank
from ccfcpp.data.images import Samples
from ccfcpp.engine.algorithm import Algorithm, ClientContext, Epilogue
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.distributed import (
    Distributed,
    Follow,
    SharedMemories,
    current_processes,
    share_out,
)
from ccfcpp.engine.exchange import ClientSide
from ccfcpp.engine.federation import Federation, LocalModelObserver, RoundReport
from ccfcpp.engine.memories import ClientMemories, memory_budget
from ccfcpp.engine.processes import Facts
from ccfcpp.engine.stages import Stage
from ccfcpp.engine.transport import InProcess, Transport
from ccfcpp.privacy.noise.per_image_clipping import bounding_of
from ccfcpp.runs.environment import describe_environment
from ccfcpp.runs.evaluator import Evaluator, Scores
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.local_spectra import LocalSpectra
from ccfcpp.runs.paths import RunSetting, Summary
from ccfcpp.runs.setting import Safeguards, Setting
from ccfcpp.runs.store import History, RunStore

Observer = Callable[[RoundReport, Scores], None]
A = TypeVar("A", bound=Algorithm[Any])
E = TypeVar("E", bound=Evaluator[Any])
D = TypeVar("D", bound=Samples)


class Run(ABC, Generic[A, E]):
    """Base class of runs: a federated algorithm, its clients, and the evaluator of its states.

    Making one checks everything that can be checked before a file is written.

    Args:
        setting: Device, randomness, availability and privacy.
        algorithm: The federated algorithm.
        side: The clients' half of each exchange of the algorithm.
        members: The connected clients that hold samples, as the server knows them.
        around: Attackers, defence and privacy protection.
        evaluator: Scores the server's states.
        epilogue: Exchanges after the last round, if any.
        absent_names: Names of the clients that are absent for the whole run.

    Raises:
        UsageError: The configuration does not fit the algorithm or the clients.
    """

    clients: Sequence[Client] = ()
    """The clients of this process."""

    def __init__(
        self,
        setting: Setting,
        algorithm: A,
        side: ClientSide,
        members: Sequence[Member],
        around: Safeguards,
        evaluator: E,
        epilogue: Epilogue | None = None,
        absent_names: Sequence[str] = (),
    ) -> None:
        setting.check_late(algorithm.rounds)
        self.setting, self.config = setting, setting.config
        self.algorithm, self.evaluator = algorithm, evaluator
        self.members, self.absent_names = list(members), list(absent_names)
        self.client_side, self.epilogue = side, epilogue
        self.attackers, self.defender = around.attackers, around.defender
        self.protection = around.protection
        self.system, self.device = self.config.method, setting.device
        self.randomness, self.availability = setting.randomness, setting.availability

    @property
    def skipped(self) -> Rows:
        """Table of the files that were left out, with reasons; none here."""
        return []

    @abstractmethod
    def describe_setting(self) -> RunSetting:
        """Return the content of ``setting.json``, which the report reads."""

    @abstractmethod
    def for_round(self, number: int) -> "Run[A, E] | None":
        """Return the run with the clients of round ``number``; None if this run has the same."""

    @abstractmethod
    def transport(
        self, memories: ClientMemories, should_stop: Callable[[], bool] = lambda: False
    ) -> Transport:
        """Return the transport to the clients, with protection and attacks around their work."""

    def run(
        self,
        folder: RunFolder,
        observe: Observer = lambda report, scores: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Summary:
        """Run all remaining rounds, and write the results.

        If clients join after the start, the run continues with them, as if it was resumed.

        Args:
            folder: The run's folder; an interrupted run continues after its last checkpoint.
            observe: Called after each round with its report and its scores.
            should_stop: Called after each round; a stopped run is checkpointed first.

        Returns:
            The content of ``summary.json``.

        Raises:
            StoppedError: ``should_stop`` returned true.
            FederationError: The rounds left no usable result, or every update was refused.
            UsageError: Another process runs it.
        """
        outcome: Summary | Run[A, E] = self
        with folder.lock(), self.config.methods().blaming(self.system, by_itself=True):
            folder.add_environment(describe_environment(self.device))
            if self.skipped:
                folder.write_table("skipped", self.skipped)
            while isinstance(outcome, Run):
                outcome = outcome._run_rounds(folder, observe, should_stop)
        return outcome

    def _run_rounds(
        self, folder: RunFolder, observe: Observer, should_stop: Callable[[], bool]
    ) -> "Summary | Run[A, E]":
        """Run rounds up to the end, or until other clients connect.

        Returns:
            The summary; or the run that continues with the clients that are connected now.
        """
        memories = self._memories(folder.checkpoint.parent)
        transport = self.transport(memories, should_stop)
        store = RunStore(folder, transport, self.algorithm.state_type, self.device)
        checkpoint = store.restore()
        if checkpoint is None:
            state, history, first_round = self.initial_state, History(), 0
        else:
            state, history = checkpoint.state, History(**checkpoint.facts)
            first_round = checkpoint.next_round
        history.check_samples(self.clients)
        if other := self.for_round(first_round):
            return other
        folder.write_setting(self.describe_setting())
        if self.protection is not None:
            self.protection.open(folder.path / "privacy.jsonl", goes_on=first_round > 0)
        last_round = self.algorithm.rounds - 1
        local = LocalSpectra(last_round, self.evaluator.represent, history.local_spectra)
        silent = folder.absent_in_last_round()
        federation = self.federation(transport, local, silent, history.taken)
        with folder.log(self.config.track) as log_round:
            for state, report in federation.run(state, first_round):  # noqa: B020 - the state moves on
                with section("scores"):
                    scores = self.evaluator.scores(report.round, state, memories)
                history.add(report)
                history.taken = sorted(federation.taken)
                log_round(report.line() | {"scores": scores})
                observe(report, scores)
                if federation.fault:  # The last checkpoint stays; the loop raises the error.
                    continue
                stopping = should_stop()
                over = federation.is_over(state, report.round + 1)
                other = None if stopping or over else self.for_round(report.round + 1)
                if stopping or over or other or store.is_due():
                    store.commit(report.round, state, vars(history))
                if stopping and not over:
                    folder.write_arrays(self.evaluator.image_results(state, memories))
                    raise StoppedError
                if other:
                    return other
        epilogue_result, facts = self.run_epilogue(federation, state)
        results = self.evaluator.results(state, memories, local, epilogue_result)
        own = facts | self.evaluator.describe() | history.describe(self.members)
        summary = own | results.summary | self._describe_safeguards() | {"out": str(folder.path)}
        folder.write_results(summary, results)
        return summary

    def _describe_safeguards(self) -> Summary:
        """Return the facts on attacks, defence and protection for the summary."""
        facts: Summary = {}
        if self.client_side.cohort is not None:
            facts["cohort"] = self.client_side.cohort
        if self.protection is not None:
            facts["privacy"] = self.protection.describe()
        if self.attackers is not None:
            facts["attack"] = self.attackers.describe()
        if self.defender is not None:
            facts["defence"] = self.defender.config.rule
        return facts

    def run_epilogue(
        self, federation: Federation[Any, Transport], state: Any
    ) -> tuple[Any, Summary]:
        """Run the epilogue, the exchanges after the last round; their bytes are counted apart.

        Returns:
            The epilogue's last state (None without one), and its part of the summary.
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
        """Return the number of exchanges of each round, without those that take place once."""
        plan = self.algorithm.plan(self.initial_state)
        return [sum(not work.exchange.once for work in works) for works in plan]

    def federation(
        self,
        transport: Transport | None = None,
        observer: LocalModelObserver | None = None,
        silent: Iterable[int] = (),
        taken: Iterable[str] = (),
    ) -> Federation[Any, Transport]:
        """Make the federation, which runs rounds between the server and its clients.

        Args:
            transport: The transport to the clients; the default stores no client states on disk.
            observer: Called with each local model that the server accepts.
            silent: Numbers of the clients that did not answer in the round before.
            taken: Names of the exchanges of which an update was accepted before.
        """
        stages: list[Stage] = [self.protection.stage] if self.protection else []
        if self.defender is not None:
            stages.append(self.defender)
        return Federation(
            self.system,
            self.algorithm,
            self.attackers.reported_members(self.members) if self.attackers else self.members,
            self.availability,
            self.randomness,
            transport or self.transport(self._memories(None)),
            stages,
            self.protection.mechanism if self.protection else None,
            observer,
            silent,
            taken,
        )

    @property
    def initial_state(self) -> Any:
        """The server's state before the first round."""
        return self.algorithm.initial_state(self.randomness)

    def _memories(self, folder: Path | None) -> ClientMemories:
        return ClientMemories(self.device, memory_budget(self.device), folder)


@dataclass(frozen=True)
class Holdings(Generic[D]):
    """The samples of all clients: one data set, and its partition.

    Attributes:
        data: All samples.
        parts: Indices of each client's samples in ``data``, also of clients that never connect.
        names: Names of the clients.
    """

    data: D
    parts: list[Tensor]
    names: list[str]


class LocalRun(Run[A, E]):
    """A run whose clients are in this process.

    Args:
        setting: Device, randomness, availability and privacy.
        algorithm: The federated algorithm.
        held: The samples of all clients.
        clients: The connected clients that hold samples.
        evaluator: Scores the server's states.
        epilogue: Exchanges after the last round, if any.
        connected: Numbers of the connected clients, ascending.
        remake: Makes the run with the clients that are connected in a round, given its number.
        number: Number of the round in which ``connected`` holds; None for the last round.

    Attributes:
        absent: Numbers of the clients that are absent for the whole run, ascending.
    """

    def __init__(
        self,
        setting: Setting,
        algorithm: A,
        held: Holdings[Any],
        clients: Sequence[Client],
        evaluator: E,
        epilogue: Epilogue | None,
        connected: Sequence[int],
        remake: Callable[[int], "LocalRun[A, E]"],
        number: int | None = None,
    ) -> None:
        self.data: Samples = held.data
        self.parts, self.names, self.clients = held.parts, held.names, clients
        self.connected, self._remake, self._number = list(connected), remake, number
        self.absent = sorted(set(range(len(held.parts))) - set(connected))
        privacy, together = setting.privacy, setting.availability.invited(len(clients))
        self._context = ClientContext.of(
            clients,
            together,
            bounding_of(privacy),
            privacy.smallest_count,
            privacy.level == "client",
            setting.is_undisturbed,
        )
        side, members = algorithm.client_side(self._context), [client.member for client in clients]
        super().__init__(
            setting,
            algorithm,
            side,
            members,
            Safeguards.of(setting, algorithm, side.works.values(), members),
            evaluator,
            epilogue,
            [held.names[number] for number in self.absent],
        )

    @property
    def skipped(self) -> Rows:
        """Table of the image files that were left out, with reasons."""
        return self.data.reading.rows if self.data.reading else []

    def describe_setting(self) -> RunSetting:
        """Return the content of ``setting.json``, which the report reads."""
        labels, classes = self.data.labels, self.data.classes
        held = [] if labels is None else [labels.cpu()[part] for part in self.parts]
        return RunSetting(
            self.algorithm.rounds,
            self.evaluator.describe(),
            {str(number): name for number, name in enumerate(self.names)},
            [client.id for client in self.clients],
            list(classes),
            [own.bincount(minlength=len(classes)).tolist() for own in held] or None,
        )

    def for_round(self, number: int) -> "LocalRun[A, E] | None":
        """Return the run with the clients of round ``number``; None if this run has the same."""
        there = self.availability.connected(range(len(self.parts)), self.randomness, number)
        return None if there == self.connected else self._remake(number)

    def transport(
        self, memories: ClientMemories, should_stop: Callable[[], bool] = lambda: False
    ) -> Transport:
        """Return the transport to the clients, in this process and in those that it leads."""
        if not isinstance(memories, SharedMemories):
            return self._in_process(self.clients, memories)
        mine = [client for client in self.clients if memories.owners[client.id] == 0]
        config = self.config.model_dump(mode="json")
        run = {"config": config, "kind": type(self.config).__name__, "number": self._number}
        own = self._in_process(mine, memories)
        return Distributed(own, self.members, memories, run)

    def share(self, own_rank: int, count: int, folder: Path | None) -> InProcess:
        """Return the clients of one of several processes, which is not the first."""
        owners = share_out(self.members, count)
        mine = [client for client in self.clients if owners[client.id] == own_rank]
        return self._in_process(mine, super()._memories(folder))

    def _memories(self, folder: Path | None) -> ClientMemories:
        if (led := current_processes()) is None:
            return super()._memories(folder)
        return SharedMemories(self.device, memory_budget(self.device), folder, led, self.members)

    def _in_process(self, clients: Sequence[Client], memories: ClientMemories) -> InProcess:
        """Return the transport to some clients, with protection and attacks around their work."""
        works, cohort = self.client_side.works, self.client_side.cohort
        if self.attackers is not None:
            works = self.attackers.works(works)
        if self.epilogue is not None:
            works = {**works, **self.epilogue.client_works(self._context)}
        merges = self.attackers is None and self.defender is None
        if self.protection is not None:
            works, merges = self.protection.works(works), merges and self.protection.merges
        side, varies = ClientSide(works, cohort), self.availability.varies
        return InProcess(clients, side, memories, self.randomness, merges, varies)

    def train(self, verbose: bool = False) -> tuple[Any, int]:
        """Run all rounds in memory, and return the last state and the number of rounds.

        Args:
            verbose: Whether to print a line for each round.

        Raises:
            UsageError: Some clients come late, for which a run needs a folder.
        """
        if self.availability.late:
            raise UsageError("availability.late has no effect here: leave it out")
        state, rounds = self.initial_state, 0
        for after, report in self.federation().run(state):
            state, rounds = after, report.round + 1
            if verbose:
                own = report.figures.get("loss")
                loss = "" if own is None else f"loss {own:+.4f}, "
                print(f"round {rounds}/{self.algorithm.rounds}: {loss}{report.seconds:.1f} s")
        return state, rounds


def make_follower(make: Callable[[Facts], "AnyLocalRun"]) -> Follow:
    """Return a function that makes the clients of a process that is not the first.

    Args:
        make: Makes a run, of a mapping with the run's ``config``, its ``kind`` (the name of the
            configuration's class), and the ``number`` of a round.
    """

    def follow(facts: Facts) -> InProcess:
        run, number = make(facts["run"]), facts["run"]["number"]
        folder = None if facts["memories"] is None else Path(facts["memories"])
        present = None if number is None else run.for_round(number)
        return (present or run).share(rank(), process_count(), folder)

    return follow


AnyRun = Run[Any, Any]
AnyLocalRun = LocalRun[Any, Any]
"""Runs with any kind of state."""
