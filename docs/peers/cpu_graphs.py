#!/usr/bin/env python3
"""Chains of ops and a small network on the CPU: NumPy op by op, and ONNX Runtime. One JSON line for each case, under the names of
`panoply bench chain10 nn/mlp --api cpu --json`. Needs numpy, onnx and onnxruntime.

    python3 docs/peers/cpu_graphs.py [--threads N] [case-prefix ...]
"""

import argparse
import json
import os
import time

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each case")
parser.add_argument("prefixes", nargs="*")
args = parser.parse_args()
random = numpy.random.default_rng(7)
LAYERS = (784, 512, 256, 10)


def normals(*shape):
    return random.standard_normal(shape, dtype=numpy.float32)


def report(case, peer, run):
    if args.prefixes and not any(case.startswith(prefix) for prefix in args.prefixes):
        return
    run()
    times, end = [], time.perf_counter() + args.seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    times.sort()
    print(json.dumps({"case": case, "peer": peer, "median_ms": times[len(times) // 2], "best_ms": times[0]}), flush=True)


def chain10(x, y):
    z = numpy.maximum(x * numpy.float32(2) + y, 0) - numpy.float32(0.5)
    z = z * (1 / (1 + numpy.exp(-z)))
    return numpy.exp(-z * z) / (1 + numpy.abs(x))


def mlp():
    nodes, weights, value = [], [], "x"
    for layer, (wide, narrow) in enumerate(zip(LAYERS, LAYERS[1:])):
        weights.append(numpy_helper.from_array(normals(wide, narrow), f"w{layer}"))
        weights.append(numpy_helper.from_array(normals(narrow), f"b{layer}"))
        last = layer + 2 == len(LAYERS)
        nodes.append(helper.make_node("Gemm", [value, f"w{layer}", f"b{layer}"], ["y" if last else f"g{layer}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"g{layer}"], [f"r{layer}"]))
            value = f"r{layer}"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", LAYERS[0]])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", LAYERS[-1]])]
    graph = helper.make_graph(nodes, "mlp", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


for name, count in (("1Mi", 1 << 20), ("16Mi", 1 << 24)):
    x, y = normals(count), normals(count)
    report(f"chain10/f32/{name}", "NumPy " + numpy.__version__, lambda: chain10(x, y))
session = mlp()
for batch in (1, 64, 4096):
    images = normals(batch, LAYERS[0])
    report(f"nn/mlp/infer/f32/b{batch}", "ONNX Runtime " + onnxruntime.__version__, lambda: session.run(None, {"x": images}))
