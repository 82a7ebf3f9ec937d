#!/usr/bin/env python3
"""What ONNX Runtime (MLAS) and, where it is installed, OpenVINO reach on the CPU with a folder of models, one JSON line
per case. The best of several runs, so that a busy machine hurts least. OpenVINO is held to f32, else it would take bf16 where
the CPU has AMX, and round what meets weights in bytes to bytes, which the model does not ask for.

    python3 -m pip install numpy onnx onnxruntime [openvino]
    python3 ml_peers.py MODELS [--threads N] [--seconds S] [--save CASES] [case-prefix ...]

A case is `infer/<model>/b<batch>`; `load/<model>` is the time from the file to a session that can run, `first/<model>` that to the first
answer. With --save nothing is measured: inputs of every batch are written to CASES/<model>/b<batch>/input_N.pb for `panoply bench
--models CASES`, and inputs with ONNX Runtime's answers for a batch of one (two, where the model takes it) as ONNX test cases,
CASES/<model>/{model.onnx, test_data_set_0/{input,output}_N.pb}, for whoever wants to compare answers.
"""
import argparse
import json
import os
import shutil
import time

parser = argparse.ArgumentParser()
parser.add_argument("models")
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each case")
parser.add_argument("--save", help="write inputs and answers into this folder instead of measuring")
parser.add_argument("prefixes", nargs="*")
args = parser.parse_intermixed_args()

import numpy as np
import onnxruntime

try:
    import openvino
except ImportError:
    openvino = None
onnxruntime.set_default_logger_severity(3)
random = np.random.default_rng(7)


def floats(*shape):
    return random.standard_normal(shape, dtype=np.float32)


def pixels(*shape):
    return random.random(shape, dtype=np.float32)


def tokens(batch, length, words, names=("input_ids", "attention_mask", "token_type_ids")):
    """Sentences of different lengths: the mask matters."""
    mask = (np.arange(length) < random.integers(length // 2, length + 1, (batch, 1))).astype(np.int64)
    values = (random.integers(1000, words, (batch, length)) * mask, mask, np.zeros_like(mask))
    return dict(zip(names, values))


def molecules(batch, atoms=24, bonds=52):
    nodes, edges = batch * atoms, batch * bonds
    ends = random.integers(0, atoms, (2, edges)) + np.repeat(np.arange(batch) * atoms, bonds)
    return {"feat": floats(nodes, 85), "edge_feat": floats(edges, 13), "edge_index": ends, "laplacian_eigvec": floats(nodes, 8),
            "laplacian_eigval": pixels(nodes, 8), "rw_return_probs": pixels(nodes, 16), "batch": np.repeat(np.arange(batch), atoms),
            "graph_slots": np.zeros(batch, np.float32)}


ONE, FEW, MANY = (1,), (1, 8), (1, 8, 32)
# model: (batches, inputs of a batch); only the first batch where a model's file fixes it
CASES = {
    "lcnet-orientation": (MANY, lambda b: {"x": pixels(b, 3, 224, 224)}),
    "resnet50-thin": (MANY, lambda b: {"input:0": 255 * pixels(b, 224, 224, 3) - 110}),
    "light-resnet50": (ONE, lambda b: {"gpu_0/data_0": pixels(b, 3, 224, 224)}),
    "light-squeezenet": (ONE, lambda b: {"data_0": pixels(b, 3, 224, 224)}),
    "light-densenet121": (ONE, lambda b: {"data_0": pixels(b, 3, 224, 224)}),
    "light-shufflenet": (ONE, lambda b: {"gpu_0/data_0": pixels(b, 3, 224, 224)}),
    "yolo11n": (FEW, lambda b: {"images": pixels(b, 3, 640, 640)}),
    "yolov8n": (ONE, lambda b: {"images": pixels(b, 3, 640, 640)}),
    "yolov8n-320": (MANY, lambda b: {"images": pixels(b, 3, 320, 320)}),
    "yolox": (ONE, lambda b: {"images": 255 * pixels(b, 3, 416, 416)}),
    "picodet-layout": (ONE, lambda b: {"image": floats(b, 3, 800, 608)}),
    "yunet": (ONE, lambda b: {"input": 255 * pixels(b, 3, 640, 640)}),
    "ppocr-det": (FEW, lambda b: {"x": floats(b, 3, 640, 640)}),
    "ppocr-rec": (MANY, lambda b: {"x": 2 * pixels(b, 3, 48, 320) - 1}),
    "ppocr-cls": (MANY, lambda b: {"x": 2 * pixels(b, 3, 48, 192) - 1}),
    "crnn": (ONE, lambda b: {"input1": 2 * pixels(b, 1, 64, 128) - 1}),
    "minilm-l6": (MANY, lambda b: tokens(b, 128, 30522)),
    "minilm-l3": (MANY, lambda b: dict(list(tokens(b, 128, 30522).items())[:2])),
    "deberta-int8": (FEW, lambda b: dict(list(tokens(b, 128, 30522).items())[:2])),
    "whisper-encoder-int8": (FEW, lambda b: {"input_features": floats(b, 80, 800)}),
    "silero-vad": (MANY, lambda b: {"input": 0.1 * floats(b, 576), "state": np.zeros((2, b, 128), np.float32), "sr": np.array(16000)}),
    "silero-vad-ifless": (MANY, lambda b: {"input": 0.1 * floats(b, 576), "state": np.zeros((2, b, 128), np.float32), "sr": np.array(16000)}),
    "pyannote-segmentation": (FEW, lambda b: {"input": 0.1 * floats(b, 1, 160000)}),
    "nsnet2": (FEW, lambda b: {"input": floats(b, 100, 513)}),
    "wake-mel": (MANY, lambda b: {"input": 3000 * floats(b, 17280)}),
    "wake-embedding": (MANY, lambda b: {"input_1": floats(b, 76, 32, 1)}),
    "wake-jarvis": (ONE, lambda b: {"x.1": floats(b, 16, 96)}),
    "basic-pitch": (FEW, lambda b: {"serving_default_input_2:0": 0.1 * floats(b, 43844, 1)}),
    "magika": (MANY, lambda b: {"bytes": random.integers(0, 257, (b, 2048)).astype(np.int32)}),
    "lac": (MANY, lambda b: {"token_ids": random.integers(1, 50000, (b, 32)), "length": np.full(b, 32)}),
    "chars2vec": (MANY, lambda b: {"lstm_input": np.eye(59, dtype=np.float32)[random.integers(0, 59, (b, 10))]}),
    "minimol": (MANY, molecules),
}


def best_ms(fn):
    """The best wall time of a call, and the best time of the process's threads: the one to trust on a busy machine, with --threads 1."""
    fn()
    wall, threads, spent = float("inf"), float("inf"), 0.0
    while spent < args.seconds:
        begin, start = time.process_time(), time.perf_counter()
        fn()
        took = time.perf_counter() - start
        wall, threads, spent = min(wall, took), min(threads, time.process_time() - begin), spent + took
    return wall * 1e3, threads * 1e3


def wanted(case):
    return not args.prefixes or any(case.startswith(prefix) for prefix in args.prefixes)


def show(case, peer, ms, **figures):
    row = {"case": case, "peer": peer, "threads": args.threads, "ms": round(ms, 4)}
    row.update({name: round(value, 3) for name, value in figures.items()})
    print(json.dumps(row), flush=True)


def with_onnxruntime(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = args.threads, 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def with_openvino(path):
    settings = {"INFERENCE_NUM_THREADS": args.threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY",
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    return lambda inputs: request.infer(inputs)


def measure(name, path, batches, make):
    for peer, load in (("onnxruntime", with_onnxruntime), ("openvino", with_openvino if openvino else None)):
        names = [f"load/{name}"] + [f"infer/{name}/b{batch}" for batch in batches]
        if load is None or not any(map(wanted, names + [f"first/{name}"])):
            continue
        try:
            start = time.perf_counter()
            run = load(path)
            loaded = time.perf_counter()
            run(make(batches[0]))
            if wanted(names[0]):
                show(names[0], peer, (loaded - start) * 1e3)
            if wanted(f"first/{name}"):
                show(f"first/{name}", peer, (time.perf_counter() - start) * 1e3)
            for batch, case in zip(batches, names[1:]):
                if wanted(case):
                    inputs = make(batch)
                    ms, cpu_ms = best_ms(lambda: run(inputs))
                    show(case, peer, ms, cpu_ms=cpu_ms, inferences_per_s=batch * 1e3 / ms)
        except Exception as error:  # a peer that cannot run a model says so and the rest goes on
            print(json.dumps({"case": f"infer/{name}", "peer": peer, "error": str(error).splitlines()[0][:160]}), flush=True)


def save(name, path, batches, make):
    from onnx import numpy_helper

    folder = os.path.join(args.save, name)
    inside = os.path.join(folder, "test_data_set_0")
    os.makedirs(inside, exist_ok=True)
    shutil.copyfile(path, os.path.join(folder, "model.onnx"))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in batches:
        os.makedirs(os.path.join(folder, f"b{batch}"), exist_ok=True)
        given = make(batch)
        for place, info in enumerate(session.get_inputs()):
            with open(os.path.join(folder, f"b{batch}", f"input_{place}.pb"), "wb") as file:
                file.write(numpy_helper.from_array(np.asarray(given[info.name]), info.name).SerializeToString())
    inputs = make(1 if batches == ONE else 2)
    answers = session.run(None, inputs)
    for label, infos, values in (("input", session.get_inputs(), [inputs[info.name] for info in session.get_inputs()]),
                                 ("output", session.get_outputs(), answers)):
        for place, (info, value) in enumerate(zip(infos, values)):
            with open(os.path.join(inside, f"{label}_{place}.pb"), "wb") as file:
                file.write(numpy_helper.from_array(np.asarray(value), info.name).SerializeToString())
    print(json.dumps({"case": name, "inputs": {key: list(value.shape) for key, value in inputs.items()},
                      "outputs": [list(value.shape) for value in answers]}), flush=True)


for model, (sizes, maker) in CASES.items():
    file_path = os.path.join(args.models, model + ".onnx")
    if os.path.exists(file_path):
        (save if args.save else measure)(model, file_path, sizes, maker)
