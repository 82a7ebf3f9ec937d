#!/usr/bin/env python3
"""A training step by PyTorch, one JSON line per case: the networks of `cargo run --release -p panoply-nn --example step` on the CPU, and
of `cargo run --release --example training` on any device.

    python3 cpu_train.py NETWORK BATCH [REPEATS [DEVICE]]     # mlp, cnn or resnet20; cpu or cuda

`ms` is the median; `peak_mib` the most memory that the process has had, the library's own included; `base_mib` that before the network was made. On a GPU the step
is captured as a CUDA graph, products and convolutions are in plain f32, `device_ms` is between two events, and both memories are the device's: what tensors took, and what the
allocator reserved.
"""
import json
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

network, batch = sys.argv[1], int(sys.argv[2])
repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 50
device = sys.argv[4] if len(sys.argv) > 4 else "cpu"
torch.manual_seed(7)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.downsample(x))


def resnet20():
    layers, inputs = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(Block(inputs, outputs, 2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


base = peak()
model, image = {
    "mlp": lambda: (nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)), (1, 28, 28)),
    "cnn": lambda: (nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 49, 10)), (1, 28, 28)),
    "resnet20": lambda: (resnet20(), (3, 32, 32)),
}[network]()
model = model.to(device)
optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
x, target = torch.randn(batch, *image, device=device), torch.arange(batch, device=device) * 7 % 10


def step():
    # A captured graph needs gradients to keep their place.
    optimiser.zero_grad(set_to_none=device == "cpu")
    F.cross_entropy(model(x), target).backward()
    optimiser.step()


def on_cpu():
    times = []
    for repeat in range(5 + repeats):
        begin = time.perf_counter()
        step()
        if repeat >= 5:
            times.append((time.perf_counter() - begin) * 1e3)
    times.sort()
    return {"threads": torch.get_num_threads(), "ms": round(times[len(times) // 2], 4), "best_ms": round(times[0], 4), "peak_mib": peak(), "base_mib": base}


def on_cuda():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times, device_times = [], []
    for repeat in range(5 + repeats):
        marks = [torch.cuda.Event(True), torch.cuda.Event(True)]
        begin = time.perf_counter()
        marks[0].record()
        graph.replay()
        marks[1].record()
        torch.cuda.synchronize()
        if repeat >= 5:
            times.append((time.perf_counter() - begin) * 1e3)
            device_times.append(marks[0].elapsed_time(marks[1]))
    times.sort()
    device_times.sort()
    return {"ms": round(times[len(times) // 2], 4), "device_ms": round(device_times[len(times) // 2], 4),
            "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1), "reserved_mib": round(torch.cuda.max_memory_reserved() / 2**20, 1)}


figures = on_cpu() if device == "cpu" else on_cuda()
print(json.dumps({"case": f"nn/{network}/train/f32/b{batch}", "peer": f"torch {torch.__version__}", **figures}))
