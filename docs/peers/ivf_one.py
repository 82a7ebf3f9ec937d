#!/usr/bin/env python3
"""One query at a time through FAISS's IndexIVFFlat: what `cargo bench -p panoply-vector --bench vectors -- probe` measures
with ours. Needs numpy and faiss-cpu. One JSON line for each case."""

import json
import pathlib
import time

import faiss
import numpy


def clustered(seed, count, centres):
    generator = numpy.random.default_rng(seed)
    which = generator.integers(0, len(centres), count)
    return (centres[which] + 0.5 * generator.normal(0, 0.577, (count, centres.shape[1]))).astype("float32")


def measure(name, rows, queries, lists, metric):
    dimension = rows.shape[1]
    quantizer = faiss.IndexFlatIP(dimension) if metric == faiss.METRIC_INNER_PRODUCT else faiss.IndexFlatL2(dimension)
    index = faiss.IndexIVFFlat(quantizer, dimension, lists, metric)
    index.train(rows)
    index.add(rows)
    for nprobe in (1, 4, 16):
        index.nprobe = nprobe
        times = []
        for round in range(3000):
            query = queries[round % len(queries)][None, :]
            start = time.perf_counter()
            index.search(query, 10)
            times.append((time.perf_counter() - start) * 1e3)
        times.sort()
        case = f"probe/{name}/{len(rows)}x{dimension}/lists{lists}/nprobe{nprobe}"
        print(json.dumps({"case": case, "peer": "FAISS " + faiss.__version__, "median_ms": round_to(times[1500]), "best_ms": round_to(times[150])}))


def round_to(value):
    return float(f"{value:.4f}")


data = pathlib.Path(__file__).resolve().parents[2] / "crates/app/data"
packages = numpy.load(data / "debian-packages.npy").astype("float32")
questions = numpy.load(data / "queries.npy").astype("float32")
faiss.normalize_L2(packages)
faiss.normalize_L2(questions)
measure("packages", packages, questions, 400, faiss.METRIC_INNER_PRODUCT)
centres = numpy.random.default_rng(1).normal(0, 0.577, (1000, 128))
measure("clustered", clustered(2, 100_000, centres), clustered(3, 200, centres), 1264, faiss.METRIC_L2)
