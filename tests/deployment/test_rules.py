"""What an owner allows holds at the client, whatever the server asks for; and is written down."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from ccfcpp.clustering.kmeans.config import FuzzyConfig
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.shallow.ffcm import local_fuzzy_c_means
from ccfcpp.clustering.systems.shallow.pixels import PixelRule
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.permissions import KINDS
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData
from ccfcpp.data.vectors import vectors_from
from ccfcpp.deployment.client.audit import FILE, AuditEntry, AuditLog
from ccfcpp.deployment.client.rules import SUFFIX, ForbiddenError, Rules, beside, read_rules
from ccfcpp.deployment.client.worker import Worker
from ccfcpp.deployment.keys.roster import signed_file
from ccfcpp.deployment.link.messages import Response
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import OWN_IMAGES, RunSpec
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.synchronised.descent import select_images
from ccfcpp.reports.owner_page import owner_page
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.command import ccfcpp
from tests.support.deployment import Grid, deployed, greeted, one_by_one, spec_of, trusting
from tests.support.federation import assert_same_bits

VICTIM = "client 0"


def started(
    folder: Path, method: str, rules: Rules, *sizes: int, clusters: int = 3, **settings: Any
) -> tuple[Federation[Any, Any], Grid, list[dict[str, Tensor]]]:
    """A federation whose clients have rules, and what the first of them sends."""
    clients = clients_of_sizes(*sizes)
    config = tiny(method, settings)
    spec = spec_of(config, clients, clusters=clusters)
    algorithm = made(config, clusters=clusters, samples=sum(sizes))
    federation, grid = deployed(spec, algorithm, clients, folder)
    sent: list[dict[str, Tensor]] = []

    def note(packet: Packet) -> Packet:
        if packet.payload:
            sent.append(load(packet.payload))
        return packet

    for worker in grid.workers.values():
        worker.rules = rules
    grid.tampering[next(iter(grid.workers))] = note
    return federation, grid, sent


def first_round(federation: Federation[Any, Any]) -> Any:
    state = federation.algorithm.initial_state(Randomness(0))
    return federation.run_round(state, 0)[1]


# --- images that a configuration would take out ---------------------------------------------------


@pytest.mark.parametrize(
    ("method", "kind"),
    [("k-fed", "pixels"), ("ffcm-km", "pixels"), ("km", "images"), ("ppfc-gan", "synthetic")],
)
def test_a_client_sends_nothing_that_its_owner_does_not_allow(
    method: str, kind: str, tmp_path: Path
) -> None:
    federation, _, _ = started(tmp_path, method, trusting(smallest_count=0), 20, 14)
    report = first_round(federation)
    assert list(report.refused) == [0, 1]
    assert f"its owner does not allow {kind} (--allow {kind})" in report.refused[0][0]
    assert report.bytes_up == 0


IMAGES, VECTORS = (1, 8, 8), (5,)


@pytest.mark.parametrize(
    ("method", "settings", "shape", "wanted"),
    [
        ("fed-scan", {}, IMAGES, ("sums",)),
        ("fed-scan", {"scan": {"widths": []}}, IMAGES, ("sums", "pixels")),
        ("fed-scan", {"scan": {"widths": [], "stem": 8}}, IMAGES, ("sums",)),
        ("fed-scan", {"scan": {"encoder": "mlp"}}, VECTORS, ("sums", "pixels")),
        ("fed-scan", {"scan": {"encoder": "linear"}}, VECTORS, ("sums", "pixels")),
        ("fed-em", {}, VECTORS, ("pixels", "sums")),
        ("km", {}, VECTORS, ("images",)),
        ("ccfc++", {}, IMAGES, ("models", "centroids", "sums")),
        ("fedavg", {}, IMAGES, ("models", "classes")),
        ("fedavg", {"model": {"widths": []}}, IMAGES, ("models", "classes", "pixels")),
        ("ccfc++", {"model": {"widths": []}}, IMAGES, ("models", "centroids", "sums", "pixels")),
        ("fed-emp", {"crops": {"widths": []}}, IMAGES, ("sums", "pixels")),
        ("fed-dcn", {}, IMAGES, ("models", "centroids", "pixels", "synthetic")),
        ("orchestra", {}, IMAGES, ("models", "centroids")),
        ("orchestra", {"orchestra": {"widths": []}}, IMAGES, ("models", "centroids", "pixels")),
    ],
)
def test_what_is_made_of_averages_of_the_data_must_be_allowed(
    method: str, settings: Tree, shape: tuple[int, ...], wanted: tuple[str, ...]
) -> None:
    """As the gradient of a first layer over all pixels, or over all columns of a vector."""
    config = {"method": method, **settings}
    command = "classify" if method == "fedavg" else "cluster"
    spec = RunSpec.model_validate({"command": command, "config": config, "image_shape": shape})
    assert spec.kinds == wanted


# --- what the greeting tells ----------------------------------------------------------------------


def answer_to(folder: Path, rules: Rules, data: Any, command: str, config: Tree) -> Response:
    """The answer of a client to the first message of a run."""
    spec = RunSpec.model_validate({"command": command, "config": config})
    return greeted(Worker(lambda spec: data, folder, rules), spec)


def folders(samples: int, *classes: str) -> ImageData:
    """Images whose folders have the names of classes."""
    labels = torch.arange(samples) % len(classes)
    return ImageData("a", torch.zeros(samples, 1, 8, 8, dtype=torch.uint8), labels, classes)


CLASSIFY: Tree = {"method": "fedavg"}


EVIL = "\x1b]0;owned\x07\nround 1: nothing was sent" + 10_000 * "a"


@pytest.mark.parametrize("section", [{"scan": {"encoder": EVIL}}, {"vectors": {"scale": EVIL}}])
def test_what_a_server_sends_is_shown_to_the_owner_as_one_short_line(
    section: Tree, tmp_path: Path
) -> None:
    """It forges no line of a log, and sends no commands to a terminal."""
    said: list[str] = []
    config = {"method": "fed-scan", "clusters": 3, **section}
    spec = RunSpec.model_validate({"command": "cluster", "config": config})
    worker = Worker(lambda spec: folders(30, "a"), tmp_path, Rules(), say=said.append)
    assert greeted(worker, spec).status != "done"
    (line,) = said
    assert line.isprintable()
    assert len(line) < 1100


@pytest.mark.parametrize("allow", [(), ("counts",), ("pixels", "images", "synthetic")])
def test_a_server_that_says_classify_hears_no_name(allow: Any, tmp_path: Path) -> None:
    data = folders(40, "patient 4711", "patient 4712")
    answer = answer_to(tmp_path, Rules(allow=allow), data, "classify", CLASSIFY)
    assert (answer.status, answer.facts) == ("forbidden", None)
    assert answer.reason == "its owner does not allow classes (--allow classes)"
    allowed = answer_to(tmp_path, Rules(allow=("classes",)), data, "classify", CLASSIFY)
    assert allowed.facts is not None
    assert allowed.facts.classes == data.classes


@pytest.mark.parametrize("allow", [(), ("classes",), ("pixels",)])
def test_a_clustering_names_classes_with_counts_alone(allow: Any, tmp_path: Path) -> None:
    data = folders(40, "patient 4711", "patient 4712")
    answer = answer_to(tmp_path, Rules(allow=allow), data, "cluster", {"method": "fed-scan"})
    assert answer.facts is not None
    assert (answer.facts.classes, answer.facts.counts) == ((), False)
    counts = Rules(allow=("counts",))
    answer = answer_to(tmp_path, counts, data, "cluster", {"method": "fed-scan"})
    assert answer.facts is not None
    assert (answer.facts.classes, answer.facts.counts) == (data.classes, True)


@pytest.mark.parametrize("command", ["cluster", "classify"])
def test_classes_that_tell_samples_apart_are_not_named(command: str, tmp_path: Path) -> None:
    settings: dict[str, Tree] = {
        "cluster": {"method": "fed-scan"},
        "classify": {"data": {"test_share": 0.5}},
    }
    config: Tree = {**CLASSIFY, **settings[command]}
    rules = Rules(allow=("counts", "classes"), accept=("data.test_share=0.5",))
    for classes, status in ((15, "done"), (16, "forbidden")):
        data = folders(31, *(f"patient {number}" for number in range(classes)))
        answer = answer_to(tmp_path, rules, data, command, config)
        assert answer.status == status, answer
    assert "16 classes for" in answer.reason
    assert "patient" not in answer.reason


@pytest.mark.parametrize("setting", ["train_images=5", "test_images=5", "test_share=0.5"])
def test_no_server_chooses_which_images_are_trained_on(setting: str, tmp_path: Path) -> None:
    """Two runs whose images differ by one would tell the gradient of that one."""
    key, _, value = setting.partition("=")
    config: Tree = {**CLASSIFY, "data": {key: float(value) if "." in value else int(value)}}
    answer = answer_to(tmp_path, Rules(allow=("classes",)), folders(40, "a"), "classify", config)
    assert answer.status == "forbidden"
    assert f"(--accept data.{setting})" in answer.reason


@pytest.mark.parametrize("shape", [(1, 8, 5000), (1, 5000, 8), (1, 8, 8, 8)])
def test_a_server_asks_for_no_image_that_fills_the_disk(shape: tuple[int, ...]) -> None:
    config = {"command": "cluster", "config": {}, "image_shape": shape}
    with pytest.raises(ValueError, match="sides of at most 4096"):
        RunSpec.model_validate(config)
    assert RunSpec.model_validate({**config, "image_shape": (5000,)}).unit == "vector"


def test_vectors_are_refused_before_a_word_of_them_is_said(tmp_path: Path) -> None:
    data = vectors_from("a", np.zeros((20, 2)), "a", columns=("age", "weight"))
    answer = answer_to(tmp_path, Rules(), data, "cluster", {"method": "fed-scan"})
    assert (answer.status, answer.facts) == ("forbidden", None)
    assert answer.reason == "its owner does not allow pixels (--allow pixels)"
    answer = answer_to(tmp_path, Rules(allow=("pixels",)), data, "cluster", {"method": "fed-scan"})
    assert answer.facts is not None
    assert answer.facts.columns == ("age", "weight")


def test_a_client_looks_at_no_path_of_a_server(tmp_path: Path) -> None:
    there = str(tmp_path)
    config = {
        "method": "feddp-kmeans",
        "dataset": there,
        "data": {"root": there, "newcomers": [there], "skip": 0.1},
        "feddp": {"server": there, "points": 9},
    }
    spec = RunSpec.model_validate({"command": "cluster", "config": config})
    assert there not in json.dumps(spec.config)
    assert spec.config["data"] == {"newcomers": [OWN_IMAGES], "skip": 0.1}
    assert spec.config["feddp"] == {"points": 9}


# --- averages of few ------------------------------------------------------------------------------


def test_each_image_as_its_own_centroid_is_refused(tmp_path: Path) -> None:
    """k-FED with as many clusters as images would send every image, bit for bit."""
    rules = trusting(allow=("pixels",))
    federation, _, sent = started(
        tmp_path, "k-fed", rules, 40, 30, clusters=40, kfed={"local_clusters": 40}
    )
    report = first_round(federation)
    assert report.refused[0][0].endswith("none of its clusters has 5 images")
    assert sent == []


def test_a_centroid_that_one_image_outweighs_is_not_sent() -> None:
    """With a large fuzzifier an image at a centroid has all weight, and half of the memberships."""
    (client,) = clients_of_sizes(30)
    rule = PixelRule(PixelsConfig(), (1, 8, 8))
    images = rule.points(client.images)
    for least, sent in ((0, True), (5, False)):
        choices = FuzzyConfig(m=100.0, iterations=1)
        update = local_fuzzy_c_means(images, images[[3, 8]], choices, least)
        assert torch.allclose(update.centroids, images[[3, 8]], atol=1e-5)
        assert bool((update.supports > 5).all()) == sent


@given(
    st.integers(5, 40), st.floats(0.05, 30), st.integers(2, 8), st.integers(0, 5), st.integers(0, 9)
)
def test_images_are_shown_in_groups_that_stay_together(
    samples: int, share: float, least: int, client: int, seed: int
) -> None:
    source, steps = Randomness(seed).of_client(client), 400
    shown = [select_images(samples, share, step, source, least).tolist() for step in range(steps)]
    together = [set(images) for images in shown]
    groups = {
        frozenset(i for i in range(samples) if all((i in t) == (one in t) for t in together))
        for one in set().union(*together)
    }
    assert all(len(group) >= least for group in groups)
    if samples < least:
        assert not groups
    else:
        assert abs(sum(map(len, shown)) - steps * share) <= 2 * least + share


def test_groups_are_those_of_a_source_of_their_own() -> None:
    """Else the steps of two runs, with other groups, would differ by single images."""
    runs = [Randomness(seed).of_client(0) for seed in (1, 2)]

    def groups(source: Randomness, grouping: Randomness | None) -> set[frozenset[int]]:
        steps = [select_images(20, 5.0, s, source, 5, 0.0, grouping).tolist() for s in range(4)]
        return {frozenset(step) for step in steps}

    assert groups(runs[0], Randomness(3)) == groups(runs[1], Randomness(3))
    assert groups(runs[0], None) != groups(runs[1], None)


@pytest.mark.parametrize("method", ["fed-scan", "ccfc++", "k-fed"])
def test_with_a_floor_the_bits_are_those_of_one_process(method: str, tmp_path: Path) -> None:
    clients = clients_of_sizes(30, 14, 9)
    config = tiny(method)
    spec = spec_of(config, clients, clusters=3)
    rules = trusting(allow=KINDS, smallest_count=4)
    there, grid = deployed(spec, made(config, samples=53), clients, tmp_path)
    for worker in grid.workers.values():
        worker.rules = rules
    here = one_by_one(spec, made(config, samples=53), clients, least=4)
    state = here.algorithm.initial_state(Randomness(0))
    assert_same_bits(list(there.run(state)), list(here.run(state)))


@pytest.mark.parametrize("key", ["a.b.key", "a.b.key.old"])
def test_rules_stay_when_a_key_is_renewed(key: str) -> None:
    assert beside(Path("keys") / key, SUFFIX) == Path("keys/a.b.rules")


def test_files_beside_the_folder_that_one_is_in_have_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "keys" / "roster"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert beside(Path(), SUFFIX) == tmp_path / "keys" / "roster.rules"
    assert signed_file(Path()) == tmp_path / "keys" / "roster.signed"
    assert signed_file(Path("..")) == tmp_path / "keys.signed"


def test_who_holds_too_few_images_does_not_take_part(tmp_path: Path) -> None:
    federation, _, sent = started(tmp_path, "fed-scan", trusting(), 4, 30)
    report = first_round(federation)
    assert any("its owner wants 5 in each sum" in why for why in report.refused[0])
    assert sent == []


@pytest.mark.parametrize("method", ["ccfc", "orchestra", "fed-dcn"])
def test_batches_of_fewer_images_than_the_owner_wants_are_refused(method: str) -> None:
    section = {"orchestra": "orchestra", "fed-dcn": "dcn"}.get(method, "training")
    spec = RunSpec(command="cluster", config={"method": method, section: {"batch_size": 4}})
    with pytest.raises(ForbiddenError, match=rf"{section}\.batch_size=4, and its owner wants 5"):
        trusting(allow=KINDS).check(spec)
    trusting(allow=KINDS, smallest_count=4).check(spec)


def test_privacy_of_images_does_not_open_the_floor(tmp_path: Path) -> None:
    """The server would see sums over single images, before it adds its noise."""
    spec = spec_of(tiny("fed-scan"), clients_of_sizes(20), clusters=3)
    privacy = {"level": "image", "secure_sums": False}
    image = spec.model_copy(update={"config": {**spec.config, "privacy": privacy}})
    with pytest.raises(Exception, match="sums over single images"):
        trusting().check(image)
    secure = {**spec.config, "privacy": {**privacy, "secure_sums": True}}
    trusting().check(spec.model_copy(update={"config": secure}))
    trusting(smallest_count=0).check(image)


# --- the file of rules ----------------------------------------------------------------------------


def test_options_stand_above_the_file(tmp_path: Path) -> None:
    path = tmp_path / "clinic.rules"
    path.write_text("allow: [counts]\nsmallest_count: 20\nonly_private: 4\n")
    assert read_rules(path, {}) == Rules(allow=("counts",), smallest_count=20, only_private=4.0)
    found = read_rules(path, {"allow": ["pixels"], "smallest_count": 7})
    assert found.allowed >= {"counts", "pixels", "sums"}
    assert (found.smallest_count, found.only_private) == (7, 4.0)
    assert read_rules(tmp_path / "none", {}) == Rules()
    path.write_text("honest: 5\ncolluders: 2\n")
    assert read_rules(path, {"honest": 3}) == Rules(colluders=2, honest=3)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("allow: [photos]", "allow = photos is refused: it should be pixels or synthetic"),
        ("allow: 3", "is no list: write allow: [3]"),
        ("smallest_count: -1", "smallest_count = -1 is refused"),
        ("smallest: 3", "unknown key 'smallest': did you mean 'smallest_count'"),
        ("only_private: 0", "only_private = 0 is refused"),
        ("honest: 1", "honest = 1 is refused"),
        ("colluders: -1", "colluders = -1 is refused"),
        ("delta: 0.001", "delta = 0.001 has no effect: it needs only_private or budget; give"),
        ("- a", "holds no settings"),
        ("a: [", "cannot be read as YAML"),
        ("!!python/object/apply:os.system ['true']", "cannot be read as YAML"),
        ("budget: 4\nbudget: 40", "line 2 has the key 'budget' a second time"),
        ("delta: 2020-13-45", "cannot be read as YAML"),
        ("[" * 5000, "cannot be read as YAML"),
    ],
)
def test_rules_that_are_none_are_refused(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "clinic.rules"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_rules(path, {})
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


# --- the log --------------------------------------------------------------------------------------


def test_the_owner_can_read_what_was_asked_and_sent(tmp_path: Path) -> None:
    federation, grid, sent = started(tmp_path, "fed-scan", trusting(), 20, 14)
    first_round(federation)
    worker = next(iter(grid.workers.values()))
    worker.rules = trusting(only_secure_sums=True)
    first_round(federation)
    entries = list(AuditLog(worker.folder).read())
    done = [entry for entry in entries if entry.status == "done"]
    assert len(done) == len(sent)
    assert all(entry.bytes > 0 and entry.kinds == ("sums",) for entry in done)
    refused = [entry for entry in entries if entry.status == "forbidden"]
    assert refused
    assert refused[0].bytes == 0
    result = ccfcpp("audit", worker.folder)
    assert result.code == 0
    assert f"requests: {len(entries)}, {len(refused)} of them refused" in result.stdout
    assert "refused: its owner allows secure sums alone" in result.stdout
    assert len(ccfcpp("audit", worker.folder, "--each").stdout.splitlines()) == len(entries)
    lines = ccfcpp("audit", worker.folder, "--json").stdout.splitlines()
    assert [json.loads(line)["status"] for line in lines] == [entry.status for entry in entries]


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("{\n")])
def test_a_log_that_cannot_be_read_is_told_in_one_line(
    spoil: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text("")
    spoil(tmp_path / FILE)
    result = ccfcpp("audit", tmp_path)
    assert result.code == 2
    assert result.stderr.count("\n") == 1


def entry(asked: str) -> AuditEntry:
    return AuditEntry("here:9092", "a" * 32, "fed-km", ("sums",), asked, 0, "done", bytes=100)


def test_a_line_that_was_cut_short_hides_no_other(tmp_path: Path) -> None:
    AuditLog(tmp_path).add(entry("first"))
    AuditLog(tmp_path).add(entry("second"))
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-40])
    AuditLog(tmp_path).add(entry("third"))
    log = AuditLog(tmp_path)
    assert [each.asked for each in log.read()] == ["first", "third"]
    assert len(path.read_bytes().splitlines()) == 3
    shown = ccfcpp("audit", tmp_path)
    assert shown.code == 0
    assert f"line 2 of {path} is damaged" in shown.stderr
    assert "2, 0 of them refused" in shown.stdout
    assert "line 2 of " in owner_page(tmp_path)
