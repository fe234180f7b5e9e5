"""Lines as the providers printed them, without their times."""

from __future__ import annotations

from edge_agent.engine.reasons import reasons_in

WEBGPU = """\
[I:onnxruntime:, webgpu_execution_provider.cc:635 GetCapability] webgpu kernel not found in \
registries for Op type: Gather node name: n0
[I:onnxruntime:, webgpu_execution_provider.cc:635 GetCapability] webgpu kernel not found in \
registries for Op type: MatMulInteger node name: n29
[I:onnxruntime:, fallback_cpu_capability.cc:89 operator()] Candidate for fallback CPU execution: n5
[I:onnxruntime:, fallback_cpu_capability.cc:167 GetCpuPreferredNodes] ORT optimization- Force \
fallback to CPU execution for node: n10 because the CPU execution path is deemed faster than \
overhead involved with execution on other EPs  capable of executing this node
"""
QNN = """\
[V:onnxruntime:, base_op_builder.cc:40 AddToModelBuilder] QNN node builder is trying to add node. \
Onnx node name: [n0] onnx node type: [QuantizeLinear].
\x1b[0;93m[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 \
nodes in OrtNodeUnit (QuantizeLinear) :
\tOperator type: QuantizeLinear Node name: n0 Node index: 66
\tREASON : QNN EP is configured to not take Q nodes that consume a graph input.
\x1b[m
[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation PASSED for 1 nodes in \
OrtNodeUnit (Mul) :
\tOperator type: Mul Node name: n1 Node index: 67

[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 3 nodes in \
OrtNodeUnit (HardSigmoid) :
\tOperator type: DequantizeLinear Node name: n4 Node index: 70
\tOperator type: HardSigmoid Node name: n5 Node index: 71
\tOperator type: QuantizeLinear Node name: n6 Node index: 72
\tREASON : Cannot get shape

[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in \
OrtNodeUnit (MatMulInteger) :
\tOperator type: MatMulInteger Node name: n48 Node index: 48
\tREASON : Operators of type `MatMulInteger` are not supported by QNN EP.MatMulInteger node `n48` \
will not be assigned to QNN EP.

[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in \
OrtNodeUnit (MatMulInteger) :
\tOperator type: MatMulInteger Node name: n48 Node index: 48
\tREASON : Failed to add node.
"""


def test_missing_kernels_and_work_on_shapes_are_told_of_webgpu() -> None:
    assert reasons_in(WEBGPU) == {
        "n0": "the provider has no kernel for Gather of these types",
        "n29": "the provider has no kernel for MatMulInteger of these types",
        "n10": "ONNX Runtime holds the processor to be quicker for it: it works on shapes",
    }


def test_every_node_of_a_group_that_qnn_refuses_has_the_first_reason_of_it() -> None:
    shapes = "the provider says: a dimension of its tensors is open"
    assert reasons_in(QNN) == {
        "n0": "the provider says: QNN EP is configured to not take Q nodes that consume a graph "
        "input",
        "n4": shapes,
        "n5": shapes,
        "n6": shapes,
        "n48": "the provider says: Operators of type `MatMulInteger` are not supported by QNN EP",
    }


def test_other_logs_hold_no_reasons() -> None:
    assert reasons_in("[I:onnxruntime:, x.cc:1 Run] Starting program n0\n\x00\xff\n") == {}
