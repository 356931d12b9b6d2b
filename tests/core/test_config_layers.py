from pathlib import Path
from typing import Any

import pytest
import yaml

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.systems.ccfc.config import LossConfig, TrainingConfig
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import (
    differing_keys,
    dump_yaml,
    flatten,
    merge,
    nest,
    parse_assignments,
    preset,
    read_yaml,
    resolve,
    stack,
    unflatten,
    validate,
    values_of,
)
from ccfcpp.core.errors import UsageError, in_file
from ccfcpp.core.presets import preset_file, preset_folder
from ccfcpp.data.registry import DATASETS
from supervised.config import ClassifyConfig


def test_the_defaults_are_the_authors_choices_for_mnist() -> None:
    beside: Tree = {"preset": "published", "dataset": "mnist"}
    mnist = resolve(ClusterConfig, "cluster", beside, read_yaml(preset_file("literal")))
    given = {"dataset": "mnist", "preset": "published", "method": "ccfc++"}
    chosen: Tree = {"model": {"backbone": "conv"}, "centroids": {"first_encoder": "global"}}
    # Of synchronised steps, which neither the paper nor the code has.
    chosen["training"] = {"synchronised_batch": 2300}
    # Of Fed-SCAN's steps, likewise.
    chosen["scan"] = {"overclustering": 4, "merged_from": 0.5}
    defaults = validate(ClusterConfig, given | chosen)
    assert differing_keys(mnist, defaults) == []
    assert mnist.section(LossConfig).eta == 0.01
    training = mnist.section(TrainingConfig)
    assert (training.pretrain_rounds, training.rounds) == (100, 30)


CLUSTER = preset_folder() / "cluster"
PUBLISHED = CLUSTER / "published"


@pytest.mark.parametrize("path", sorted(CLUSTER.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_preset_is_valid(path: Path) -> None:
    for method in ("ccfc", "ccfc++"):
        config = resolve(ClusterConfig, "cluster", read_yaml(path), {"method": method})
        assert config.dataset == ("digits" if path.stem in ("images", "vectors") else path.stem)


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_published_preset_is_valid(path: Path) -> None:
    """It lies over the preset of its data set, and says no more than what differs."""
    own = read_yaml(path)
    assert (CLUSTER / path.name).is_file()
    assert ("dataset" in own) == (path.stem != "images")
    assert own.get("dataset", path.stem) == path.stem
    dataset = own.get("dataset", "/data/my images")
    assert path.stem == "images" or dataset in DATASETS
    published: Tree = {"preset": "published", "dataset": dataset}
    config = resolve(ClusterConfig, "cluster", published)
    assert (config.preset, config.method, config.dataset) == ("published", "ccfc++", dataset)
    # CCFC++ has choices of its own over it.
    over = PUBLISHED / "ccfc++" / path.name
    given = dict(flatten(own)) | dict(flatten(read_yaml(over) if over.is_file() else {}))
    assert given.items() <= values_of(config).items()


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10", "stl10"])
def test_beside_the_paper_the_averaged_model_gives_the_first_centroids(dataset: str) -> None:
    published = resolve(ClusterConfig, "cluster", {"preset": "published", "dataset": dataset})
    assert published.section(CentroidConfig).first_encoder == "global"


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10", "stl10"])
def test_beside_the_paper_ccfc_plus_plus_differs_from_ccfc_by_its_own_choices(dataset: str) -> None:
    def chosen(method: str, *layers: Tree) -> dict[str, object]:
        above: Tree = {"preset": "published", "dataset": dataset, "method": method}
        return values_of(resolve(ClusterConfig, "cluster", above, *layers))

    ccfc, ours = chosen("ccfc"), chosen("ccfc++")
    assert {key: value for key, value in ours.items() if ccfc[key] != value} == {
        "method": "ccfc++",
        "loss.lam": 0.1,
        "loss.eta": 0.01,
        "loss.pretrain_eta": 0.01,
        "loss.scale": "feddecorr",
        "centroids.starts": 100,
        "centroids.server_weights": "sizes",
        "centroids.search": "lloyd",
        "centroids.refine_steps": 5,
    }
    literal = chosen("ccfc++", read_yaml(preset_file("literal")))
    assert {key for key, value in literal.items() if ccfc[key] != value} == {"method", "loss.eta"}


def test_every_preset_has_a_published_one() -> None:
    presets, published = ({path.name for path in f.glob("*.yaml")} for f in (CLUSTER, PUBLISHED))
    # Nothing is published of vectors.
    assert presets - {"vectors.yaml"} == published


@pytest.mark.parametrize("dataset", ["digits", "mnist", "fashion-mnist"])
def test_ccfc_plus_plus_is_the_default_where_its_settings_were_found(dataset: str) -> None:
    config = resolve(ClusterConfig, "cluster", {"dataset": dataset})
    assert (config.method, config.preset) == ("ccfc++", "default")
    assert config.section(TrainingConfig).pretraining == "neighbours"


def test_without_a_data_set_and_a_method_ccfc_plus_plus_clusters_the_digits() -> None:
    for config in (resolve(ClusterConfig, "cluster", {}), ClusterConfig()):
        assert (config.dataset, config.method) == ("digits", "ccfc++")


@pytest.mark.parametrize(
    ("method", "expected", "lam_and_eta"),
    [
        ({}, "ccfc++", (0.1, 0.01)),
        ({"method": "ccfc"}, "ccfc", (0.001, 0.0)),
        ({"method": "km"}, "km", (0.001, 0.01)),
    ],
)
def test_the_published_preset_has_the_phases_of_the_paper(
    method: Tree, expected: str, lam_and_eta: tuple[float, float]
) -> None:
    for below, above in (({"preset": "published"}, {}), ({}, {"preset": "published"})):
        config = resolve(ClusterConfig, "cluster", {"dataset": "mnist"} | below, method | above)
        assert (config.method, config.preset) == (expected, "published")
        training = config.section(TrainingConfig)
        assert (training.pretrain_rounds, training.rounds) == (100, 30)
        assert weights(config) == lam_and_eta


def test_values_of_the_user_lie_over_the_published_preset() -> None:
    given: Tree = {"preset": "published", "dataset": "mnist", "training": {"rounds": 3}}
    config = resolve(ClusterConfig, "cluster", given, {"loss": {"eta": 0.7}})
    assert config.section(TrainingConfig).rounds == 3
    assert weights(config) == (0.1, 0.7)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_presets_by_minutes_are_of_one_system_and_one_size_after_another(name: str) -> None:
    presets = ("fast", "default", "best")
    of = [resolve(ClusterConfig, "cluster", {"dataset": name, "preset": p}) for p in presets]
    steps = [config.section(CropsConfig).steps for config in of]
    assert steps == sorted(set(steps))
    assert {config.method for config in of} == {"fed-emp"}


@pytest.mark.parametrize("other", [{"dataset": "mnist"}, {"dataset": "cifar10", "method": "km"}])
def test_presets_by_minutes_are_refused_where_there_are_none(other: Tree) -> None:
    with pytest.raises(UsageError, match="preset = best is refused: it is of fed-emp on cifar10"):
        resolve(ClusterConfig, "cluster", {"preset": "best", **other})


@pytest.mark.parametrize("value", ["paper", "", "publishedd", None, 3, ["published"]])
def test_an_unknown_preset_is_one_line_with_those_that_there_are(value: object) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(ClusterConfig, "cluster", {"preset": value})
    names = "'default', 'published', 'fast' or 'best'"
    said = f"preset = {in_file(value)} is refused: it should be {names}"
    assert str(caught.value) == said


def test_only_clustering_has_a_preset_by_name() -> None:
    with pytest.raises(UsageError, match="unknown key 'preset'"):
        resolve(ClassifyConfig, "classify", {"preset": "published"})


def weights(config: ClusterConfig) -> tuple[float, float]:
    loss = config.section(LossConfig)
    return loss.lam, loss.eta


def test_a_value_beats_the_file_beats_the_preset() -> None:
    file: Tree = {"preset": "published", "dataset": "cifar10", "loss": {"lam": 0.5}}
    config = resolve(ClusterConfig, "cluster", file, {"loss": {"eta": 0.7}})
    assert weights(config) == (0.5, 0.7)
    config = resolve(ClusterConfig, "cluster", file, {"loss": {"lam": 0.0}})
    assert weights(config) == (0.0, 0.01)


def test_ccfc_sets_the_decorrelation_weights_to_zero() -> None:
    config = resolve(ClusterConfig, "cluster", {}, {"method": "ccfc", "dataset": "mnist"})
    loss = config.section(LossConfig)
    assert loss.eta == loss.pretrain_eta == 0
    with pytest.raises(UsageError, match="method = 'ccfc' is CCFC"):
        resolve(ClusterConfig, "cluster", {}, {"method": "ccfc", "loss": {"eta": 0.1}})


def test_the_layers_of_a_resumed_run_follow_the_same_rule() -> None:
    saved = resolve(ClusterConfig, "cluster", {"dataset": "mnist"}, {"method": "ccfc"}).model_dump()
    again = stack(ClusterConfig, saved, preset("cluster", "mnist"), {"method": "ccfc"})
    assert validate(ClusterConfig, again) == validate(ClusterConfig, saved)


def test_the_preset_for_mnist_explains_every_key() -> None:
    every_key = ClusterConfig.known_fields({}).keys() - {
        "privacy.clips",
        "crops.loss",
        "crops.grid",
    }
    assert {key for key, _ in flatten(preset("cluster", "mnist"))} == every_key


def test_a_path_gets_the_preset_for_images_of_ones_own() -> None:
    own = resolve(ClusterConfig, "cluster", {}, {"dataset": "/data/my images"})
    assert own.dataset == "/data/my images"
    preset_of_images = validate(ClusterConfig, read_yaml(CLUSTER / "images.yaml"))
    assert own.section(TrainingConfig) == preset_of_images.section(TrainingConfig)


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    config = resolve(
        ClusterConfig, "cluster", {}, {"dataset": "cifar10", "method": "ccfc", "seed": 7}
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config))
    assert validate(ClusterConfig, read_yaml(path)) == config
    assert resolve(ClusterConfig, "cluster", read_yaml(path), {}) == config


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("partition.p", 1.5, "partition.p = 1.5 is refused: it should be less than or equal to 1"),
        ("partition.p", -0.1, "partition.p = -0.1 is refused: it should be greater than or equal"),
        ("partition.p", float("nan"), "partition.p = nan is refused"),
        ("clusters", 0, "clusters = 0 is refused: it should be a number of clusters, 1 at least"),
        ("clusters", "1-9", "or a range from 2 or more such as 5-30"),
        ("clusters", "9-9", "clusters = 9-9 is refused"),
        ("clusters", "some", "clusters = some is refused: it should be a number of clusters"),
        ("training.batch_size", 1, "training.batch_size = 1 is refused"),
        (
            "training.rounds",
            "many",
            "training.rounds = many is refused: it should be a valid int",
        ),
        ("loss.lam", float("inf"), "loss.lam = inf is refused"),
        ("method", "ccfcc", "method = ccfcc is refused: did you mean 'ccfc'? Known: km, fcm, "),
        ("method", "ccfcpp", "method = ccfcpp is refused: did you mean 'ccfc++'? Known: "),
        ("method", "CCFC+++", "method = CCFC+++ is refused: did you mean 'ccfc++'? Known: "),
        ("method", "x", "method = x is refused: it should be one of km, fcm, "),
        ("method", "x\udcff", r"method = x\udcff is refused: it should be one of km, fcm, "),
        ("views.area", [0.9, 0.2], "views.area = [0.9, 0.2]: the range must ascend"),
        ("partition.q", 1, "unknown key 'partition.q': did you mean 'partition.p'?"),
        ("dataset", "", "dataset =  is refused: "),
        ("centroids.restarts", 10**12, "should be less than or equal to 1000000"),
        ("lamda", 1, "unknown key 'lamda': did you mean 'loss.lam'?"),
        ("training.learning_rat", 1, "did you mean 'training.learning_rate'?"),
        ("vectrs", 1, "unknown key 'vectrs': did you mean 'vectors'?"),
        ("loss", 3, "loss = 3 is refused"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(key: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        validate(ClusterConfig, nest(key, value))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stored_run_may_hold_keys_of_an_earlier_version_in_sections_of_other_systems() -> None:
    stored = validate(ClusterConfig, {"method": "km"}).model_dump()
    old = merge(stored, {"crops": {"old": "rate"}, "partition": {"alpha": 0.5}})
    assert validate(ClusterConfig, stack(ClusterConfig, old)) == validate(ClusterConfig, stored)
    with pytest.raises(UsageError, match=r"unknown key 'crops.old'"):
        stack(ClusterConfig, stored, {"crops": {"old": "rate"}})
    with pytest.raises(UsageError, match=r"unknown key 'pixels.old'"):
        validate(ClusterConfig, merge(stored, {"pixels": {"old": 1}}))


def test_a_run_needs_a_round() -> None:
    with pytest.raises(UsageError, match="run one at least"):
        validate(ClusterConfig, {"training": {"rounds": 0, "pretrain_rounds": 0}})


def test_rounds_beside_the_systems_own_key_are_refused_in_one_layer() -> None:
    given: Tree = {"method": "fed-km", "rounds": 3, "means": {"rounds": 5}}
    with pytest.raises(UsageError, match=r"^rounds = 3 and means\.rounds = 5 set the same: give"):
        resolve(ClusterConfig, "cluster", given)
    below: Tree = {"method": "fed-km", "means": {"rounds": 5}}
    above = resolve(ClusterConfig, "cluster", below, {"rounds": 3})
    assert dict(flatten(above.model_dump()))["means.rounds"] == 3


@pytest.mark.parametrize("steps", ["abc", 1.5, None, 0])
def test_rounds_of_no_number_of_steps_are_refused_by_the_steps(steps: object) -> None:
    given: Tree = {"method": "fed-scan", "rounds": 3, "scan": {"steps_per_round": steps}}
    with pytest.raises(UsageError, match=r"^scan.steps_per_round = .* is refused"):
        resolve(ClusterConfig, "cluster", given)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [1", "is not valid YAML"),
        ("- 1\n- 2", "must hold keys and values"),
        ("a: 1\nb: 2\na: 3", "line 3 has the key 'a' a second time"),
        ("loss: {eta: 1, eta: 1}", "line 1 has the key 'eta' a second time"),
        ("? [a, b]\n: 1", "is not valid YAML"),
        ("loss: {no: 1}", "the key False is no text"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_configuration(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=expected) as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    assert read_yaml(path) == {}


def test_assignments_are_read_as_yaml() -> None:
    tree = parse_assignments(["a.b=1", "a.c=[2, 3]", "d=null", "e=text", "f=x=y"])
    assert tree == {"a": {"b": 1, "c": [2, 3]}, "d": None, "e": "text", "f": "x=y"}
    with pytest.raises(UsageError, match="not of the form key=value"):
        parse_assignments(["loss.lam"])
    for text in ("[1", "2024-13-45", "!!timestamp x", "!!bool x", "!!int ''", "[" * 5000):
        with pytest.raises(UsageError, match="not a YAML value"):
            parse_assignments([f"loss.lam={text}"])


def test_merging_leaves_its_arguments_alone() -> None:
    base: Tree = {"a": {"b": 1, "c": 2}}
    assert merge(base, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
    assert unflatten({"a.b": 1, "a": {"c": None}, "d": 3}) == {"a": {"b": 1, "c": None}, "d": 3}
    assert base == {"a": {"b": 1, "c": 2}}


def test_presets_are_plain_yaml() -> None:
    paths = list(preset_folder().rglob("*.yaml"))
    assert len(paths) > 20
    for path in paths:
        assert path.read_text().startswith("# "), f"{path.name} has no comment that says what it is"
        assert isinstance(yaml.safe_load(path.read_text()), dict)
