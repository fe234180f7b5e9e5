"""Knows small sound models of every kind that admission and division must cope with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A sound model, and the files with external data that belong beside it."""

    name: str
    model: onnx.ModelProto
    files: Mapping[str, bytes] = field(default_factory=dict)


_TEXTS = {
    "plain": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 3] x) => (float[N, 3] y)
        <float[3] w = {1, 2, 3}> { a = Add(x, w) b = Relu(a) c = Mul(b, w) y = Sigmoid(c) }""",
    "branches": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 4] x, bool c) => (float[2, 4] y)
        <float[4] w = {1, 2, 3, 4}> {
            a = Add(x, w)
            b = If (c) <then_branch = t () => (float[2, 4] t1) { t1 = Mul(a, w) },
                else_branch = e () => (float[2, 4] e2) { e1 = Neg(a) e2 = Sub(e1, w) }>
            y = Abs(b) }""",
    "loop": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3] x) => (float[3] y, float[K, 3] all)
        <int64 n = {4}, bool go = {1}> {
            s = Abs(x)
            r, all = Loop (n, go, s) <body = b (int64 i, bool c, float[3] h) =>
                (bool d, float[3] k, float[3] o) { d = Identity(c) k = Add(h, x) o = Neg(k) }>
            y = Exp(r) }""",
    "scan": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] h, float[5, 2] x) => (float[2] y, float[5, 2] z) {
            a = Add(x, h)
            y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) =>
                (float[2] t, float[2] u) { t = Add(s, e) u = Mul(t, s) }> (h, a) }""",
    "functions": """
        <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) {
            a = own.Twice(x) b = own.Scaled<by = 2.0>(a) y = own.Twice(b) }
        <domain: "own", opset_import: ["" : 17]> Twice (p) => (q) { q = Add(p, p) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> Scaled <by> (p) => (q) {
            k = Constant<value_float: float = @by>() r = Mul(p, k) q = own.Twice(r) }""",
    "shapes": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[B, 2, 6] x) => (float y)
        <int64 zero = {0}, int64[1] first = {0}, int64[1] tail = {12}, int64 one = {1}> {
            s = Shape(x) b = Gather(s, zero) u = Unsqueeze(b, first) t = Concat<axis=0>(u, tail)
            f = Reshape(x, t) r = Range(zero, b, one) c = Cast<to=1>(r)
            e = ConstantOfShape(u) d = Add(c, e) m = ReduceSum<keepdims=0>(d)
            g2 = ReduceMax<keepdims=0>(f) y = Add(m, g2) }""",
    "growing": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3] x) => (float[6, 9] y)
        <int64[2] times = {2, 3}, int64[2] size = {6, 9}, int64[4] pads = {1, 0, 2, 0}> {
            a = Tile(x, times) b = Pad(a, pads) c = Expand(x, times) d = Tile(c, times)
            e = ReduceSum(b) f = Expand(e, size) g2 = Add(f, e) h = ReduceMax(d) y = Add(g2, h) }
        """,
    "quantised": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
        <float s = {0.1}, uint8 z = {128}, int8[2, 2, 1, 1] w = {1, 2, 3, 4}, int8 wz = {0}> {
            q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
            v = DequantizeLinear(w, s, wz) c = Conv(d, v) r = Relu(c)
            p = QuantizeLinear(r, s, z) o = QLinearConv(p, s, z, w, s, wz, s, z)
            y = DequantizeLinear(o, s, z) }""",
    "convolutions": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 6, 6] x) => (float[1, 2] y)
        <float[2, 2, 3, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
            2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, float[2] s = {1, 2}> {
            c = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(c, s, s, s, s)
            r = Relu(n) m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
            a = GlobalAveragePool(m) f = Flatten(a) y = Softmax(f) }""",
    "learned": """
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[N, 2] x) => (float[N, 1] y) {
            s = ai.onnx.ml.Scaler<offset = [0.0, 1.0], scale = [1.0, 2.0]>(x)
            b = ai.onnx.ml.Binarizer<threshold = 0.5>(s)
            y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_falsenodeids = [2, 0, 0],
                nodes_featureids = [0, 0, 0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_nodeids = [0, 1, 2], nodes_treeids = [0, 0, 0],
                nodes_truenodeids = [1, 0, 0], nodes_values = [0.5, 0.0, 0.0],
                target_ids = [0, 0], target_nodeids = [1, 2], target_treeids = [0, 0],
                target_weights = [1.0, 2.0]>(b) }""",
    "classifying": """
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[N, 2] x) => (int64[N] l, float[N, 2] y) {
            n = ai.onnx.ml.Normalizer<norm = "L2">(x)
            l, p = ai.onnx.ml.SVMClassifier<classlabels_ints = [0, 1], coefficients = [1.0, -1.0],
                kernel_params = [0.5, 0.0, 3.0], kernel_type = "RBF", rho = [0.1],
                support_vectors = [0.0, 1.0, 1.0, 0.0], vectors_per_class = [1, 1]>(n)
            i = ai.onnx.ml.ArrayFeatureExtractor(p, l)
            y = Abs(p) }""",
    "texts": """
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        g (float[3] x) => (int64[3] y) {
            a = Abs(x) s = Cast<to = 8>(a)
            u = StringNormalizer<case_change_action = "UPPER", locale = "C">(s)
            y = ai.onnx.ml.LabelEncoder<keys_strings = ["0", "1"], values_int64s = [5, 6],
                default_int64 = -1>(u) }""",
    "sequences": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, float[2] z) => (float[4] y)
        <int64 k = {1}> {
            s = SequenceConstruct(x, z) t = SequenceInsert(s, x, k) e = SequenceErase(t, k)
            c = ConcatFromSequence<axis = 0>(e) l = SequenceAt(t, k) m = Abs(l)
            r = ReduceSum(m) y = Add(c, r) }""",
    "optionals": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y, bool h) {
            a = Neg(x) o = Optional(a) h = OptionalHasElement(o)
            v = OptionalGetElement(o) y = Abs(v) }""",
    "contributed": """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
            a = com.microsoft.FusedMatMul<alpha = 2.0>(x, w) b = com.microsoft.Gelu(a)
            c = com.microsoft.QuickGelu(b) y = Add(c, x) }""",
    "halves": """
        <ir_version: 9, opset_import: ["" : 19]>
        g (float[4] x) => (float[4] y)
        <float16[4] w = {15360, 16384, 16896, 17408}> {
            h = Cast<to = 10>(x) a = Mul(h, w) b = Cast<to = 16>(a) c = Cast<to = 17>(b)
            d = Cast<to = 1>(c) y = Neg(d) }""",
    "recurrent": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[3, 1, 2] x) => (float[3, 1, 1, 1] y)
        <float[1, 4, 2] w = {1, 1, 1, 1, 1, 1, 1, 1}, float[1, 4, 1] r = {1, 1, 1, 1}> {
            a = Tanh(x) l, h, c = LSTM<hidden_size = 1>(a, w, r) y = Sin(l) }""",
    "pieces": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 6] x) => (float[2, 6] y, float[2, 2] p)
        <int64[1] from = {1}, int64[1] to = {5}, int64[1] along = {1}, int64[3] parts = {2, 2, 2}> {
            s = Slice(x, from, to, along) p, q, r = Split<axis = 1>(x, parts)
            c = Concat<axis = 1>(r, p, q) t = Transpose<perm = [1, 0]>(s) m = MatMul(s, t)
            n = ReduceMean(m) e = Einsum<equation = "ij,jk->ik">(s, t) f = ReduceSum(e)
            g2 = Add(c, n) y = Sub(g2, f) }""",
    "random": """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 2] x) => (float[2, 2] y) {
            a = Abs(x) r = RandomNormalLike(a) z = Mul(r, a) y = Add(z, x) }""",
}  # fmt: skip


def _external() -> Seed:
    made = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 2] y)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {7, 8}> {
            a = MatMul(x, w) c = Add(a, b) y = Relu(c) }""")
    content = b""
    for tensor, location in zip(made.graph.initializer, ("w.bin", "sub/b.bin"), strict=True):
        content = numpy_helper.to_array(tensor).tobytes()
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", location), ("offset", "0"), ("length", str(len(content)))):
            tensor.external_data.add(key=key, value=text)
    weights = np.arange(1, 7, dtype=np.float32).tobytes()
    return Seed(name="external", model=made, files={"w.bin": weights, "sub/b.bin": content})


def _sparse() -> Seed:
    made = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 4] y) { a = MatMul(x, w) b = Abs(a) y = Neg(b) }""")
    values = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 5, 11], np.int64), "w_indices")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    return Seed(name="sparse", model=made)


def _constants() -> Seed:
    made = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) {
            a = Constant<value_float = 2.0>() b = Constant<value_floats = [1.0, 2.0]>()
            c = Constant<value_int = 3>() d = Constant<value_ints = [2]>()
            s = Constant<value_string = "t">() u = Constant<value_strings = ["t", "u"]>()
            t = Constant<value = float[2] {1, 2}>() e = Mul(a, b) f = Reshape(e, d)
            g2 = Cast<to = 1>(c) h = Add(x, f) i = Add(h, g2) y = Mul(i, t) }""")
    return Seed(name="constants", model=made)


def _defaults(name: str, ir_version: int, opset: int) -> Seed:
    made = parser.parse_model(f"""
        <ir_version: {ir_version}, opset_import: ["" : {opset}]>
        g (float[2] x, float[2] w) => (float[2] y) {{ a = Add(x, w) y = Abs(a) }}""")
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, 2], np.float32), "w"))
    return Seed(name=name, model=made)


def _trained() -> Seed:
    """Everything that a file may carry and a session does not need."""
    made = parser.parse_model(_TEXTS["plain"])
    made.metadata_props.add(key="ort_config", value='{"session_options": {}}')
    for value in ("a", "b"):
        made.graph.value_info.append(helper.make_tensor_value_info(value, 1, ["N", 3]))
    note = made.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    training = made.training_info.add()
    training.algorithm.CopyFrom(made.graph)
    training.update_binding.add(key="w", value="y")
    made.graph.node[0].metadata_props.add(key="k", value="v")
    made.graph.node[0].doc_string = "adds"
    return Seed(name="trained", model=made)


_BUILT: tuple[Callable[[], Seed], ...] = (
    _external,
    _sparse,
    _constants,
    lambda: _defaults("overridable", 8, 17),
    lambda: _defaults("old", 3, 8),
    _trained,
)


def seeds() -> tuple[Seed, ...]:
    """All of them, sorted by name."""
    made = [Seed(name=name, model=parser.parse_model(text)) for name, text in _TEXTS.items()]
    made += [make() for make in _BUILT]
    return tuple(sorted(made, key=lambda seed: seed.name))
