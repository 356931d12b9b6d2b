"""Encoders: what they make of photos and texts, what they keep, and what is refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import models

from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import content_hash
from ccfcpp.data.encoders import encoder as keeping
from ccfcpp.data.encoders.encoder import Encoder
from ccfcpp.data.encoders.loading import load_encoder
from ccfcpp.data.encoding import embed_images
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import open_dataset
from ccfcpp.data.texts import read_texts
from ccfcpp.data.vectors import VectorData
from tests.support.encoders import (
    NETWORK,
    Small,
    encoder_of,
    network,
    save_program,
    weights_file,
    write_photos,
)
from tests.support.federation import CPU

Cache = Callable[[], None]


def read_encoded(source: Path, encoder: Encoder, **how: Any) -> VectorData:
    data = open_dataset(str(source), encoder, **how)
    assert isinstance(data, VectorData)
    return data


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Begin with an empty cache, and take another one with each call."""
    number = iter(range(100))

    def begin() -> None:
        monkeypatch.setenv("CCFCPP_CACHE", str(tmp_path / f"cache-{next(number)}"))

    begin()
    return begin


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, and files of weights and programs."""
    folder = tmp_path_factory.mktemp("encoders")
    write_photos(folder / "photos")
    weights_file(folder)
    weights_file(folder, 1)
    weights_file(folder, 0, "pth")
    save_program(Small(), folder / "small.pt")
    return folder


def loaded(files: Path, name: str = "weights-0.safetensors") -> Encoder:
    return load_encoder(encoder_of(files / name), CPU)


def by_hand(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """What a loop with torchvision's own transforms and network gives, one photo at a time."""
    module = network()
    module.set_submodule("classifier.3", nn.Identity())
    transform = models.get_model_weights(NETWORK)["DEFAULT"].transforms()
    found = {}
    for path in sorted(folder.rglob("*.png")):
        with Image.open(path) as image, torch.inference_mode():
            vector = module(transform(image.convert("RGB"))[None])[0]
        found[path.relative_to(folder).as_posix()] = vector.numpy()
    return found


def test_vectors_are_those_of_a_plain_loop(files: Path, fresh: Cache) -> None:
    encoder = loaded(files)
    found = read_encoded(files / "photos", encoder, folders_are_clients=True)
    wanted = by_hand(files / "photos")
    assert list(found.names) == list(wanted)
    torch.testing.assert_close(
        found.vectors, torch.from_numpy(np.stack([*wanted.values()])), rtol=1e-4, atol=1e-5
    )
    assert found.classes == ("blue", "green", "red")
    assert found.owner_names == ("east", "north", "west")
    assert (found.key, found.encoder) == ("file", encoder.hash)


def test_a_vector_follows_from_its_photo_alone(files: Path, fresh: Cache) -> None:
    """To the last bit: whoever holds the others, and whatever was embedded before."""
    encoder = loaded(files)
    together = read_encoded(files / "photos", encoder)
    by_name = dict(zip(together.names, together.vectors, strict=True))
    for client in ("west", "east"):
        fresh()
        own = read_encoded(files / "photos" / client, encoder)
        for name, vector in zip(own.names, own.vectors, strict=True):
            assert torch.equal(vector, by_name[f"{client}/{name}"])


@pytest.mark.parametrize("size", [1, 5, 12])
def test_batches_of_any_size_give_the_same(files: Path, fresh: Cache, size: int) -> None:
    encoder = loaded(files)
    wanted = read_encoded(files / "photos" / "east", encoder).vectors
    fresh()
    found = read_encoded(files / "photos" / "east", replace(encoder, size=size)).vectors
    torch.testing.assert_close(found, wanted)


def test_what_was_embedded_before_is_not_embedded_again(files: Path, fresh: Cache) -> None:
    asked: list[int] = []
    encoder = loaded(files)

    def counting(pictures: Any) -> Any:
        asked.append(len(pictures))
        return encoder.batch(pictures)

    counted = replace(encoder, batch=counting)
    first = read_encoded(files / "photos" / "east", counted).vectors
    assert sum(asked) == 12
    again = read_encoded(files / "photos" / "east", counted).vectors
    assert sum(asked) == 12
    assert torch.equal(first, again)
    # Others are of the same content or new; another encoder has a shelf of its own.
    read_encoded(files / "photos", counted)
    assert sum(asked) == 36
    read_encoded(files / "photos" / "east", replace(counted, hash="0" * 64))
    assert sum(asked) == 48


def test_an_interruption_keeps_what_is_done(
    files: Path, fresh: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(range(2))
    encoder = replace(loaded(files), size=4)

    def stopping(pictures: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return encoder.batch(pictures)

    monkeypatch.setattr(keeping, "_SECONDS_BETWEEN_SAVES", 0.0)
    with pytest.raises(KeyboardInterrupt):
        read_encoded(files / "photos", replace(encoder, batch=stopping))
    asked: list[int] = []

    def counting(pictures: Any) -> Any:
        asked.append(len(pictures))
        return encoder.batch(pictures)

    read_encoded(files / "photos", replace(encoder, batch=counting))
    assert sum(asked) == 36 - 8


def test_a_damaged_photo_is_left_out_with_its_name(
    files: Path, fresh: Cache, tmp_path: Path
) -> None:
    write_photos(tmp_path / "photos", each=1)
    whole = (tmp_path / "photos/east/red/0.png").read_bytes()
    (tmp_path / "photos/east/red/cut.png").write_bytes(whole[: len(whole) // 2])
    found = read_encoded(tmp_path / "photos", loaded(files))
    assert len(found) == 9
    assert found.reading is not None
    assert [file.name for file in found.reading.skipped] == ["east/red/cut.png"]


def test_the_hash_is_that_of_the_content(files: Path, tmp_path: Path) -> None:
    """Other weights have another; a file of another form, or in another place, has the same."""
    same = {loaded(files).hash, loaded(files, "weights-0.pth").hash}
    assert len(same) == 1
    assert loaded(files, "weights-1.safetensors").hash not in same
    state = network().state_dict()
    assert content_hash([1], state) != content_hash([2], state)


def test_images_in_memory(files: Path, fresh: Cache) -> None:
    pixels = torch.randint(0, 256, (3, 1, 20, 30), dtype=torch.uint8, generator=torch.Generator())
    grey = embed_images(ImageData("x", pixels, notes=("two names look alike",)), loaded(files))
    assert grey.notes == ("two names look alike",)
    colour = embed_images(ImageData("x", pixels.expand(-1, 3, -1, -1), None, ()), loaded(files))
    torch.testing.assert_close(grey.vectors, colour.vectors)
    assert grey.pictures is not None
    shown = grey.pictures(["2", "new/0"])  # of which the second is a new client's
    assert shown.keys() == {"2"}
    assert torch.equal(shown["2"], pixels[2].expand(3, -1, -1))


def test_a_torchscript_program(files: Path, fresh: Cache) -> None:
    encoder = load_encoder(str(files / "small.pt"), CPU)
    found = read_encoded(files / "photos", encoder)
    assert found.vectors.shape == (36, 9)
    # A client's photos are blue, green and red.
    assert [row[:3].argmax().item() for row in found.vectors[:12:4]] == [2, 1, 0]


def test_an_onnx_file(files: Path, fresh: Cache, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    images = onnx.helper.make_tensor_value_info("x", 1, ["n", 3, 224, 224])
    vectors = onnx.helper.make_tensor_value_info("y", 1, ["n", 3, 1, 1])
    node = onnx.helper.make_node("GlobalAveragePool", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "mean", [images], [vectors])
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, str(tmp_path / "mean.onnx"))
    found = read_encoded(files / "photos", load_encoder(str(tmp_path / "mean.onnx"), CPU))
    program = read_encoded(files / "photos", load_encoder(str(files / "small.pt"), CPU))
    torch.testing.assert_close(found.vectors, program.vectors[:, :3])


def test_weights_beside_an_onnx_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could change, and the content hash would not."""
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    images = onnx.helper.make_tensor_value_info("x", 1, ["n", 3, 8, 8])
    vectors = onnx.helper.make_tensor_value_info("y", 1, ["n", 3, 8, 8])
    weights = onnx.numpy_helper.from_array(np.ones((1, 3, 8, 8), np.float32), "w")
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "add", [images], [vectors], [weights])
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, "inside.onnx")
    load_encoder("inside.onnx", CPU)
    beside = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model, "beside.onnx", **beside)
    with pytest.raises(UsageError, match="export it again, with its weights inside"):
        load_encoder("beside.onnx", CPU)


def test_a_network_of_timm(files: Path, fresh: Cache, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = timm.create_model("mobilenetv3_small_050", pretrained=False).eval()
    save_file(module.state_dict(), tmp_path / "own.safetensors")
    name = f"timm:mobilenetv3_small_050@{tmp_path / 'own.safetensors'}"
    found = read_encoded(files / "photos" / "east", load_encoder(name, CPU))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(module))
    with Image.open(files / "photos" / "east" / found.names[3]) as image, torch.inference_mode():
        pixels = transform(image.convert("RGB"))[None]
        wanted = module.forward_head(module.forward_features(pixels), pre_logits=True)[0]
    torch.testing.assert_close(found.vectors[3], wanted, rtol=1e-4, atol=1e-5)


def length(texts: Any) -> Any:
    return np.array([[len(text), text.count("e")] for text in texts], np.float32)


TEXTS = Encoder(EncoderName.parse("sentence-transformers:none"), "1" * 64, 2, length)


def test_texts(fresh: Cache, tmp_path: Path) -> None:
    """A column of a table, lines of a file, and a file for each client, give the same."""
    table = tmp_path / "texts.csv"
    table.write_text('what,text,who\na,"three, or",x\nb,eleven,y\na,,x\na,three,y\n')
    found = read_encoded(
        table,
        TEXTS,
        folders_are_clients=True,
        vectors=VectorsConfig(label_column="what", client_column="who"),
    )
    assert found.vectors.tolist() == [[9, 2], [6, 3], [5, 2]]
    assert found.names == ("three, or", "eleven", "three")
    assert (found.classes, found.owner_names, found.key) == (("a", "b"), ("x", "y"), "text")
    folder = tmp_path / "clients"
    folder.mkdir()
    (folder / "x.txt").write_text("three, or\n\n")
    (folder / "y.txt").write_text("eleven\nthree\n")
    by_file = read_encoded(folder, TEXTS)
    assert torch.equal(by_file.vectors, found.vectors)
    assert by_file.owner_names == ("x", "y")
    assert by_file.owners is not None
    assert by_file.owners.tolist() == [0, 1, 1]


def test_a_model_of_sentences_by_its_folder(fresh: Cache, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = Tokenizer(WordLevel({"[UNK]": 0, "blue": 1, "sea": 2}, unk_token="[UNK]"))  # noqa: S106
    words.pre_tokenizer = Whitespace()
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = library.SentenceTransformer(
        modules=[StaticEmbedding(words, embedding_weights=table)], device="cpu"
    )
    model.save(str(tmp_path / "model"))
    encoder = load_encoder(str(tmp_path / "model"), CPU)
    (tmp_path / "texts.txt").write_text("blue\nblue sea\n")
    found = read_encoded(tmp_path / "texts.txt", encoder)
    assert found.vectors.tolist() == [[4, 5, 6, 7], [6, 7, 8, 9]]


def test_a_model_of_sentences_brings_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("sentence_transformers")
    place, ran = tmp_path / "model", tmp_path / "ran"
    place.mkdir()
    modules = [{"idx": 0, "name": "0", "path": "", "type": "own.Own"}]
    (place / "modules.json").write_text(json.dumps(modules))
    (place / "config_sentence_transformers.json").write_text("{}")
    (place / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    with pytest.raises(UsageError, match="without code of its own"):
        load_encoder(str(place), CPU)
    assert not ran.exists()
    monkeypatch.setattr(library, "__version__", "5.2.0")
    (place / "another").touch()
    with pytest.raises(UsageError, match="needs sentence-transformers 6 or later"):
        load_encoder(str(place), CPU)


REFUSED_NAMES = {
    "torchvison:resnet50": "did you mean torchvision:resnet50?",
    "resnet50": "it should be torchvision:NAME",
    "torchvision:": "it should be torchvision:NAME",
    "torchvision:resnet50@": "it should be torchvision:NAME",
}


@pytest.mark.parametrize("name", REFUSED_NAMES)
def test_names_of_no_known_form_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=REFUSED_NAMES[name].replace("?", "[?]")):
        EncoderName.parse(name)


REFUSED: dict[str, str] = {
    "torchvision:resnet5": "did you mean resnet50",
    f"torchvision:{NETWORK}:IMAGENET9": "torchvision has IMAGENET1K_V1",
    "torchvision:resnet18@weights-0.safetensors": "does not hold the weights",
    f"torchvision:{NETWORK}@small.pt": "holds no weights",
    f"torchvision:{NETWORK}@pickled.pth": "holds no weights",
    f"torchvision:{NETWORK}@none.safetensors": "there is no file",
    "weights-0.pt": "there is no file",
    "pickled.pt": "is no TorchScript program",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_loaded_is_refused(
    name: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    ran: list[int] = []

    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return ran.append, (1,)

    for suffix in ("pth", "pt"):
        torch.save({"x": Harmful()}, files / f"pickled.{suffix}")
    with pytest.raises(UsageError) as refused:
        load_encoder(name, CPU)
    assert REFUSED[name] in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not ran


def test_without_a_way_to_the_weights_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(UsageError) as refused:
        load_encoder(f"torchvision:{NETWORK}", CPU)
    assert "cannot be had from download.pytorch.org" in str(refused.value)
    assert f"torchvision:{NETWORK}@FILE.safetensors" in str(refused.value)


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match=r"needs timm.*pip install '\.\[encoders\]'"):
        load_encoder("timm:resnet18", CPU)


def test_a_program_that_gives_no_vectors_is_refused(
    files: Path, fresh: Cache, tmp_path: Path
) -> None:
    save_program(nn.Identity(), tmp_path / "same.pt")
    with pytest.raises(UsageError, match="no vector: give one that ends with pooling"):
        read_encoded(files / "photos", load_encoder(str(tmp_path / "same.pt"), CPU))


def test_data_that_the_encoder_does_not_take_are_refused(
    files: Path, fresh: Cache, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(UsageError, match="holds vectors, and encoder"):
        read_encoded(tmp_path / "x.npy", loaded(files))
    with pytest.raises(UsageError, match="holds no texts"):
        read_encoded(files / "photos", TEXTS)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="has no column 'text': it has 'a', 'b'; name that"):
        read_texts(tmp_path / "x.csv", "text")
