"""edge-agent: runs any ONNX model on the compute units of edge devices, divided as it pays."""
