"""What a run leaves behind assigns as the server would, for every system."""

import json
import math
from pathlib import Path
from typing import Any, get_origin

import pytest
import torch
import yaml
from torch import Tensor

from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.model import ModelFacts, load_model
from ccfcpp.core.config import PrecisionConfig
from ccfcpp.core.config_layers import dump_yaml, merge
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import save_tensors
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.payload import pack
from tests.support.clustering import clients_of_sizes, digits, made, run_tiny, tiny

every_method = pytest.mark.parametrize("method", METHODS.own())


def run_of(method: str) -> tuple[Any, Any, Any]:
    """Configuration, algorithm and last state of a small run."""
    config = tiny(method)
    state, _, _ = run_tiny(config, clients_of_sizes(30, 21))
    return config, made(config), state


def written(folder: Path, config: Any, tensors: dict[str, Tensor], header: Any = None) -> Path:
    facts = ModelFacts(clusters=3, image_shape=(1, 8, 8))
    folder.mkdir(exist_ok=True)
    save_tensors(folder / "model.safetensors", tensors, facts.header if header is None else header)
    (folder / "config.yaml").write_text(dump_yaml(config))
    return folder / "model.safetensors"


@every_method
def test_a_delivery_assigns_as_the_server_does(method: str, tmp_path: Path) -> None:
    config, algorithm, state = run_of(method)
    images, _ = digits()
    expected = algorithm.assign(state, Client(0, "all", images[:200]))
    final_model = algorithm.final_model(state)
    kind = algorithm.final_model_type
    assert isinstance(final_model, get_origin(kind) or kind)
    for name, payload in (("state", state), ("delivery", final_model)):
        path = written(tmp_path / name, config, pack(payload))
        for place in (path, path.parent):
            assert torch.equal(load_model(place).assign(images[:200]), expected)


# FFCM begins with centroids.
@pytest.mark.parametrize("method", [name for name in METHODS.own() if "ffcm" not in name])
def test_a_state_without_clusters_is_refused(method: str, tmp_path: Path) -> None:
    config = tiny(method)
    algorithm = made(config)
    path = written(tmp_path / "run", config, pack(algorithm.initial_state(Randomness(0))))
    with pytest.raises(UsageError, match="knows no clusters yet: give the model of a finished run"):
        load_model(path)


@pytest.fixture(scope="module")
def k_fed() -> tuple[Any, dict[str, Tensor]]:
    config, _, state = run_of("k-fed")
    return config, pack(state)


def refused(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_model(tmp_path: Path, k_fed: Any) -> None:
    config, tensors = k_fed
    assert "there is no model" in refused(tmp_path / "none.safetensors")
    assert "model.safetensors: give the model.safetensors of a finished run" in refused(tmp_path)
    path = written(tmp_path / "run", config, tensors)
    (tmp_path / "run" / "config.yaml").unlink()
    assert "config.yaml is missing: put it beside the model" in refused(path)
    (tmp_path / "run" / "config.yaml").write_text("method: fedavg")
    assert "names no known system of clustering (fedavg)" in refused(path)
    for content in (b"", b"no model", path.read_bytes()[:-1]):
        path.write_bytes(content)
        assert "is no model (" in refused(path)


def test_a_model_with_other_numbers_is_told_as_damage(tmp_path: Path, k_fed: Any) -> None:
    path = written(tmp_path / "run", *k_fed)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "is no model (its checksum is wrong" in refused(path)


@pytest.mark.parametrize("method", ["fed-scan", "ccfc++", "ppfc-gan"])
def test_a_model_of_another_system_does_not_fit(tmp_path: Path, k_fed: Any, method: str) -> None:
    path = written(tmp_path / "run", tiny(method), k_fed[1])
    message = refused(path)
    assert "does not fit the config.yaml beside it" in message or "no clusters" in message


@pytest.mark.parametrize("method", METHODS.own())
def test_a_model_for_other_images_does_not_fit(tmp_path: Path, method: str) -> None:
    config, _, state = run_of(method)
    # The mean over places takes any size, but not other channels.
    shape = (3, 8, 8) if method == "fed-emp" else (1, 12, 12)
    facts = ModelFacts(clusters=3, image_shape=shape)
    path = written(tmp_path / "run", config, pack(state), facts.header)
    assert "does not fit the config.yaml beside it" in refused(path)


def test_headers(tmp_path: Path, k_fed: Any) -> None:
    config, tensors = k_fed
    for header in ({}, {"ccfcpp": "no JSON"}, {"ccfcpp": json.dumps({"clusters": 3})}):
        path = written(tmp_path / "run", config, tensors, header)
        assert "the header of" in refused(path)


def test_images_of_another_shape_are_refused(tmp_path: Path, k_fed: Any) -> None:
    model = load_model(written(tmp_path / "run", *k_fed))
    with pytest.raises(ValueError, match="expected"):
        model.assign(torch.zeros(2, 1, 9, 9, dtype=torch.uint8))


def test_images_of_another_type_are_refused_and_arrays_taken(tmp_path: Path, k_fed: Any) -> None:
    model = load_model(written(tmp_path / "run", *k_fed))
    images, _ = digits()
    wrong: Any
    for wrong in (images.float() / 255, images.numpy() / 255, images.long(), images > 9):
        with pytest.raises(UsageError, match=r"^the model: images are \w+, but must be uint8: "):
            model.assign(wrong)
    expected = model.assign(images)
    for array in (images.numpy(), images.numpy()[:, 0], images.numpy().transpose(0, 2, 3, 1)):
        assert torch.equal(model.assign(array), expected)


@pytest.mark.parametrize("method", ["fed-scan", "ccfc++", "k-fed"])
def test_how_sure_an_assignment_is(method: str, tmp_path: Path) -> None:
    config, algorithm, state = run_of(method)
    images = digits()[0][:50]
    found = load_model(written(tmp_path / "run", config, pack(state))).examine(images)
    points = algorithm.represent(state, Client(0, "all", images))
    centres = algorithm.centres(state)
    apart = [
        math.dist(p, centres[c]) for p, c in zip(points.tolist(), found["cluster"], strict=True)
    ]
    if not algorithm.by_angle:
        assert found["distance"].tolist() == pytest.approx(apart, rel=1e-4)
    if method == "fed-scan":
        everything = algorithm.probabilities(state, Client(0, "all", images))
        assert torch.allclose(everything.sum(dim=1), torch.ones(50))
        assert torch.equal(everything.argmax(dim=1), found["cluster"])
        off = (everything.max(dim=1).values - found["probability"]).abs().max()
        # On a GPU other batches are rounded in another way.
        assert float(off) <= (1e-6 if torch.cuda.is_available() else 0)
    else:
        assert "probability" not in found


def test_a_system_that_assigns_nothing_new_is_named(
    tmp_path: Path, k_fed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*arguments: object) -> Tensor:
        raise NotImplementedError

    path = written(tmp_path / "run", *k_fed)
    monkeypatch.setattr(type(made(k_fed[0])), "assign", without)
    assert "k-fed does not assign new images: take another system" in refused(path)


def test_a_precision_of_gpus_alone_is_left_out_on_a_cpu(tmp_path: Path) -> None:
    config, _, state = run_of("sda-fc-km")
    given = {"compute": {"precision": "tf32"}}
    path = written(tmp_path / "run", config, pack(state))
    content = merge(yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()), given)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(content))
    assert load_model(path, "cpu").problem.config.section(PrecisionConfig).precision == "float32"
