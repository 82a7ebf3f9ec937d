#!/usr/bin/env python3
"""The networks of gpu_ml_torch.py as ONNX files with random weights, for `panoply bench --models FOLDER`: ResNet-50, and encoders of the sizes
of MiniLM-L6 and BERT-base, in f16.

    python3 gpu_models.py FOLDER             # writes FOLDER/<name>.onnx; wants the onnx package, no weights yet
    python3 gpu_models.py FOLDER --weights   # writes FOLDER/<name>.weights; wants numpy alone, so that it can be done where the files were copied to

The weights lie beside the files as external data, so that the files are small.
"""
import json
import os
import sys

import numpy as np

FOLDER, ONLY_WEIGHTS = sys.argv[1], "--weights" in sys.argv


class Builder:
    """Nodes, and the places of weights in the file beside the model."""

    def __init__(self, name):
        self.name, self.nodes, self.weights, self.plan, self.offset, self.count = name, [], [], [], 0, 0

    def fresh(self, label):
        self.count += 1
        return f"{label}_{self.count}"

    def node(self, op, *inputs, outputs=1, **attributes):
        from onnx import helper

        names = [self.fresh(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, shape, scale):
        """Normals of this deviation; a deviation of None is ones."""
        from onnx import TensorProto

        name, size = self.fresh("w"), 2 * int(np.prod(shape))
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT16, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.name + ".weights"), ("offset", self.offset), ("length", size)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        self.weights.append(tensor)
        self.plan.append((int(np.prod(shape)), scale))
        self.offset += size
        return name

    def constant(self, values, kind):
        from onnx import numpy_helper

        name = self.fresh("c")
        self.weights.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def save(self, inputs, output):
        from onnx import TensorProto, helper

        ports = [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
        out = [helper.make_tensor_value_info(output, TensorProto.FLOAT16, None)]
        graph = helper.make_graph(self.nodes, self.name, ports, out, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        with open(os.path.join(FOLDER, self.name + ".onnx"), "wb") as file:
            file.write(model.SerializeToString())
        with open(os.path.join(FOLDER, self.name + ".plan"), "w") as file:
            json.dump(self.plan, file)


def resnet50():
    from onnx import TensorProto

    b = Builder("resnet50")

    def conv(x, inputs, outputs, size, stride=1, relu=True, add=None):
        w, bias = b.weight([outputs, inputs, size, size], (2 / (inputs * size * size)) ** 0.5 * (0.5 if add else 1)), b.weight([outputs], 0.01)
        y = b.node("Conv", x, w, bias, strides=[stride, stride], pads=[size // 2] * 4, kernel_shape=[size, size])
        y = b.node("Add", y, add) if add else y
        return b.node("Relu", y) if relu else y

    x = conv("x", 3, 64, 7, 2)
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            short = x if inputs == 4 * width and stride == 1 else conv(x, inputs, 4 * width, 1, stride, relu=False)
            y = conv(conv(x, inputs, width, 1), width, width, 3, stride)
            x, inputs = conv(y, width, 4 * width, 1, add=short), 4 * width
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.weight([1000, inputs], inputs**-0.5), b.weight([1000], 0.01), transB=1)
    b.save([("x", TensorProto.FLOAT16, ["batch", 3, 224, 224])], x)


def encoder(name, hidden, layers, heads, inner, words=30522, places=512, length=128):
    from onnx import TensorProto

    b = Builder(name)

    def linear(x, inputs, outputs):
        return b.node("Add", b.node("MatMul", x, b.weight([inputs, outputs], inputs**-0.5)), b.weight([outputs], 0.01))

    def norm(x):
        return b.node("LayerNormalization", x, b.weight([hidden], None), b.weight([hidden], 0.01), axis=-1, epsilon=1e-12)

    x = norm(b.node("Add", b.node("Gather", b.weight([words, hidden], 0.02), "ids"), b.weight([1, length, hidden], 0.02)))
    keep = b.node("Cast", "keep", to=TensorProto.FLOAT16)
    axes = b.constant([1, 2], np.int64)
    mask = b.node("Unsqueeze", b.node("Mul", b.node("Sub", b.constant(1.0, np.float16), keep), b.constant(-60000.0, np.float16)), axes)
    size, split = hidden // heads, b.constant([0, 0, heads, hidden // heads], np.int64)
    merge, scale = b.constant([0, 0, hidden], np.int64), b.constant(size**-0.5, np.float16)
    for _ in range(layers):
        q, k, v = (b.node("Reshape", linear(x, hidden, hidden), split) for _ in range(3))
        q, v = (b.node("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, v))
        k = b.node("Transpose", k, perm=[0, 2, 3, 1])
        scores = b.node("Add", b.node("Mul", b.node("MatMul", q, k), scale), mask)
        mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
        mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), merge)
        x = norm(b.node("Add", x, linear(mixed, hidden, hidden)))
        x = norm(b.node("Add", x, linear(b.node("Gelu", linear(x, hidden, inner)), inner, hidden)))
    weight, middle = b.node("Unsqueeze", keep, b.constant([2], np.int64)), b.constant([1], np.int64)
    total = b.node("ReduceSum", b.node("Mul", x, weight), middle, keepdims=0)
    mean = b.node("Div", total, b.node("ReduceSum", weight, middle, keepdims=0))
    answer = b.node("Div", mean, b.node("ReduceL2", mean, b.constant([1], np.int64), keepdims=1))
    b.save([("ids", TensorProto.INT64, ["batch", length]), ("keep", TensorProto.INT64, ["batch", length])], answer)


def write_weights(name):
    random = np.random.default_rng(7)
    with open(os.path.join(FOLDER, name + ".plan")) as plan, open(os.path.join(FOLDER, name + ".weights"), "wb") as file:
        for count, scale in json.load(plan):
            values = np.ones(count, np.float16) if scale is None else (random.standard_normal(count, np.float32) * scale).astype(np.float16)
            file.write(values.tobytes())


if ONLY_WEIGHTS:
    for entry in sorted(os.listdir(FOLDER)):
        if entry.endswith(".plan"):
            write_weights(entry[: -len(".plan")])
else:
    os.makedirs(FOLDER, exist_ok=True)
    resnet50()
    encoder("minilm", 384, 6, 12, 1536)
    encoder("bert-base", 768, 12, 12, 3072)
