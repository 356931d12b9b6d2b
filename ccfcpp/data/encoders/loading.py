"""Loading of encoders: torchvision and timm models, ONNX and TorchScript files, text models.

Weights are read from safetensors, or by PyTorch's reader that refuses all but tensors. An ONNX file
is a graph, which onnxruntime evaluates. A TorchScript file is a program: it runs as one, so only
the owner of a machine names it. No name that comes from a server is loaded.
"""

import difflib
import functools
import hashlib
import importlib
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import content_hash
from ccfcpp.data.encoders.encoder import Encoder

_BATCH, _TEXTS = 32, 512
"""Batch sizes for images and for texts, which are sorted by length and embedded 32 at a time."""
_SAFE_SENTENCES = 6
"""First major version of sentence-transformers that runs no code from a model's folder."""
_SIDE = 224
"""Default side of the input images in pixels, for a file that does not state it."""

Picture = NDArray[np.uint8]
Transform = Callable[[Image.Image], Tensor]
Batch = Callable[[Sequence[Picture]], NDArray[np.floating]]


def load_encoder(text: str, device: torch.device) -> Encoder:
    """Load the pre-trained encoder that the user has named ``text``.

    Raises:
        UsageError: No encoder has the name, its weights are missing or do not fit, or an optional
            package is not installed.
    """
    name = EncoderName.parse(text)
    path = Path(name.file or name.name).expanduser()
    if name.by_path and not path.exists():
        raise UsageError(f"there is no file {path}: give an encoder that is there")
    # The last encoders are cached while their files stay the same.
    inside = path.rglob("*") if name.family == "sentence-transformers" else ()
    changed = [each.stat().st_mtime_ns for each in (path, *inside) if each.exists()]
    return _load_cached(name, device, (path.absolute(), max(changed, default=0)))


@functools.lru_cache(maxsize=2)
def _load_cached(name: EncoderName, device: torch.device, file: object) -> Encoder:
    return _FAMILIES[name.family](name, device)


def _load_torchvision(name: EncoderName, device: torch.device) -> Encoder:
    from torchvision import models

    _check_known(name, models.list_models(module=models))
    published = models.get_model_weights(name.name)
    if name.weights and name.weights not in published.__members__:
        known = ", ".join(each for each in published.__members__ if each != "DEFAULT")
        raise UsageError(
            f"encoder {name.called} is not known: torchvision has {known} for {name.name}"
        )
    weights = published[name.weights or "DEFAULT"]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that random weights are slow: they are replaced
        module = models.get_model(name.name, weights=None)
    if hasattr(module, "transform_input"):
        module.transform_input = True  # as with published weights
    if name.file:
        state = _read_weights(name)
    else:
        try:
            state = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        except (OSError, RuntimeError) as error:
            _raise_unavailable(name, urlsplit(weights.url).hostname or "", error)
    layers = {at: each for at, each in module.named_modules() if isinstance(each, _LAYERS)}
    head = next(reversed(layers))
    module.set_submodule(head, nn.Identity())
    return _encoder_of_network(name, module, state, (head,), weights.transforms(), device)


_LAYERS = (nn.Linear, nn.Conv2d)
"""Layer types; the last such layer of a torchvision network is its classification head."""


def _load_timm(name: EncoderName, device: torch.device) -> Encoder:
    timm = _import_optional("timm", name)
    _check_known(name, timm.list_models(), name.name.partition(".")[0])
    try:
        with torch.random.fork_rng(devices=[]):
            module = timm.create_model(name.name, pretrained=not name.file, num_classes=0)
    except Exception as error:  # its hub has errors of its own
        _raise_unavailable(name, "huggingface.co", error)
    heads = module.pretrained_cfg.get("classifier") or ()
    state = _read_weights(name) if name.file else module.state_dict()
    config = timm.data.resolve_model_data_config(module)
    transform = timm.data.create_transform(**config, is_training=False)
    return _encoder_of_network(
        name, module, state, (heads,) if isinstance(heads, str) else heads, transform, device
    )


def _encoder_of_network(
    name: EncoderName,
    module: nn.Module,
    state: Mapping[str, Tensor],
    heads: Sequence[str],
    transform: Transform,
    device: torch.device,
) -> Encoder:
    """Make an encoder from a network, with the weights in ``state`` except those of ``heads``."""
    left_out = tuple(f"{head}." for head in heads)
    kept = {key: value for key, value in state.items() if not key.startswith(left_out)}
    try:
        module.load_state_dict(kept)
    except RuntimeError as error:
        raise UsageError(
            f"{name.file} does not hold the weights of {name.called} ({_one_line(error)[:200]}): "
            "give those of this architecture"
        ) from error
    digest = content_hash([name.family, name.name, repr(transform)], module.state_dict())
    return Encoder(name, digest, _BATCH, _make_batch(module, transform, device))


def _make_batch(module: nn.Module, transform: Transform, device: torch.device) -> Batch:
    module.to(device).eval()

    def batch(pictures: Sequence[Picture]) -> NDArray[np.floating]:
        # Clients with a GPU and without one are to have the same vectors: TF32 keeps three digits.
        exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
        with torch.inference_mode(), exact:
            vectors = module(_stack_batch(pictures, transform, _BATCH).to(device))
        return np.asarray(vectors[: len(pictures)].float().cpu().numpy())

    return batch


def _stack_batch(pictures: Sequence[Picture], transform: Transform, size: int) -> Tensor:
    """Preprocess images and stack them to a batch `(size, 3, h, w)`, padded with the last image.

    With a constant batch size, each vector depends on its image alone, to the last bit.
    """
    tensors = [transform(_as_pil(picture)) for picture in pictures]
    return torch.stack(tensors + [tensors[-1]] * (size - len(tensors)))


def _as_pil(picture: Picture) -> Image.Image:
    grey = picture.shape[0] == 1
    return Image.fromarray(picture[0] if grey else picture.transpose(1, 2, 0)).convert("RGB")


def _load_torchscript(name: EncoderName, device: torch.device) -> Encoder:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            path = str(Path(name.name).expanduser())
            module = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"{name.name} is no TorchScript program: of a file of weights give the architecture, "
            f"too, such as torchvision:resnet50@{name.name}"
        ) from error
    transform = _imagenet_transform(_SIDE, _SIDE)
    return _encoder_of_program(name, _BATCH, transform, _make_batch(module, transform, device))


def _load_onnx(name: EncoderName, device: torch.device) -> Encoder:
    runtime = _import_optional("onnxruntime", name)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Weights in separate files would not be part of the content hash.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", os.devnull
    )
    path = Path(name.name).expanduser()
    try:
        session = runtime.InferenceSession(path, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has its own error for each kind of damage
        raise UsageError(
            f"{name.name} is no ONNX file that runs: export it again, with its weights inside"
        ) from error
    (given, *others), (first, *_) = session.get_inputs(), session.get_outputs()
    shape = list(given.shape)
    if others or len(shape) != 4 or shape[1] not in (3, "3"):
        raise UsageError(
            f"{name.name} takes {shape} and not colour images (n, 3, height, width): give one that "
            "does"
        )
    known, _, height, width = (n if isinstance(n, int) else None for n in shape)
    size, transform = known or _BATCH, _imagenet_transform(height or _SIDE, width or _SIDE)

    def batch(pictures: Sequence[Picture]) -> NDArray[np.floating]:
        tensors = _stack_batch(pictures, transform, size).numpy()
        return np.asarray(session.run([first.name], {given.name: tensors})[0][: len(pictures)])

    return _encoder_of_program(name, size, transform, batch)


def _imagenet_transform(height: int, width: int) -> Transform:
    """Return the usual ImageNet preprocessing: resize, crop to the given size, normalise."""
    from torchvision.transforms import v2

    transform: Transform = v2.Compose(
        [
            v2.Resize(round(max(height, width) * 8 / 7), antialias=True),
            v2.CenterCrop((height, width)),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    return transform


def _encoder_of_program(
    name: EncoderName, size: int, transform: Transform, batch: Batch
) -> Encoder:
    """Make an encoder from an ONNX or TorchScript file; its errors become a ``UsageError``."""

    def batch_or_refuse(pictures: Sequence[Picture]) -> NDArray[np.floating]:
        try:
            return batch(pictures)
        except Exception as error:
            raise UsageError(
                f"{name.name} does not turn images (n, 3, height, width) into vectors "
                f"({_one_line(error)[-200:]}): give a program that takes float32 images normalised "
                "as ImageNet's"
            ) from error

    with Path(name.name).expanduser().open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Encoder(
        name, content_hash([name.family, digest, repr(transform)]), size, batch_or_refuse
    )


def _load_sentence_transformer(name: EncoderName, device: torch.device) -> Encoder:
    library = _import_optional("sentence_transformers", name)
    if int(library.__version__.partition(".")[0]) < _SAFE_SENTENCES:
        # Earlier ones run the code that a model's folder brings.
        raise UsageError(
            f"encoder {name.called} needs sentence-transformers {_SAFE_SENTENCES} or later, and "
            f"{library.__version__} is installed: pip install '.[encoders]'"
        )
    place = Path(name.name).expanduser()
    try:
        model = library.SentenceTransformer(
            str(place) if place.is_dir() else name.name,
            device=str(device),
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
    except Exception as error:  # its hub has errors of its own
        if place.is_dir():
            raise UsageError(
                f"{name.name} holds no model of sentences that can be loaded "
                f"({_one_line(error)[:200]}): give one whose weights are .safetensors, "
                "without code of its own"
            ) from error
        _raise_unavailable(name, "huggingface.co", error)
    facts = [repr(model), sorted(model.tokenizer.get_vocab().items())]

    def batch(texts: Sequence[str]) -> NDArray[np.floating]:
        return np.asarray(model.encode(list(texts), batch_size=_BATCH, show_progress_bar=False))

    return Encoder(name, content_hash(facts, model.state_dict()), _TEXTS, batch)


_FAMILIES: dict[str, Callable[[EncoderName, torch.device], Encoder]] = {
    "torchvision": _load_torchvision,
    "timm": _load_timm,
    "torchscript": _load_torchscript,
    "onnx": _load_onnx,
    "sentence-transformers": _load_sentence_transformer,
}


def _check_known(name: EncoderName, known: Sequence[str], given: str = "") -> None:
    if (given or name.name) not in known:
        near = difflib.get_close_matches(given or name.name, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known[:8])}, …"
        raise UsageError(f"{name.family} has no model {given or name.name!r}: {hint}")


def _read_weights(name: EncoderName) -> Mapping[str, Tensor]:
    """Read a file of weights without running any code in it; return the tensors by name."""
    path = Path(name.file).expanduser()
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of programs, which it refuses
            state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        if not all(isinstance(each, Tensor) for each in state.values()):
            raise TypeError("not all are tensors")
    except Exception as error:  # each kind of damage has its own error
        raise UsageError(
            f"{path} holds no weights as .safetensors, or as .pth with tensors by name alone: save "
            "them as safetensors"
        ) from error
    return state


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _import_optional(package: str, name: EncoderName) -> Any:
    # The hub logs each of its attempts; their result becomes one line.
    for logger in ("huggingface_hub", "sentence_transformers", "transformers"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"encoder {name.called} needs {package.replace('_', '-')}, which is not installed: pip "
            "install '.[encoders]'"
        ) from error


def _raise_unavailable(name: EncoderName, host: str, error: Exception) -> NoReturn:
    instead = (
        "the folder of the model" if name.takes == "texts" else f"{name.called}@FILE.safetensors"
    )
    raise UsageError(
        f"the weights of {name.called} cannot be had from {host} ({_one_line(error)[:120]}): "
        f"connect this machine, or bring a file of them here and give {instead}"
    ) from error
