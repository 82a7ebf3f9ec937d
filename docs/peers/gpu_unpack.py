#!/usr/bin/env python3
"""What NVIDIA's nvCOMP reaches when it unpacks 16,384 blocks of 64 KiB on one GPU, one JSON line per case.

Blocks are those of a file, over and over: `PANOPLY_CORPUS` names the same file for `panoply bench`. Packed blocks and their places are on the
device; `device_ms` is the best time between two of the device's own marks. Everything goes through the C functions of libnvcomp.so.6 (package
nvidia-libnvcomp-cu13, proprietary) and of the driver: nothing else is needed but Python and, for LZ4, its package lz4.

    python3 -m pip install nvidia-libnvcomp-cu13 lz4
    python3 gpu_unpack.py corpus.bin
"""
import ctypes
import glob
import json
import site
import sys
import zlib

BLOCK, BLOCKS, ROUNDS = 64 << 10, 16384, 12


class Options(ctypes.Structure):
    """Which way (0: the library's choice), and zeros."""
    _fields_ = [("backend", ctypes.c_int), ("rest", ctypes.c_char * 60)]


def library():
    places = [place for folder in site.getsitepackages() + [site.getusersitepackages()] + sys.path for place in glob.glob(folder + "/nvidia/libnvcomp/lib64/libnvcomp.so.*")]
    return ctypes.CDLL(places[0])


cuda, nvcomp = ctypes.CDLL("libcuda.so.1"), library()
pointer, size = ctypes.c_void_p, ctypes.c_size_t


def done(code, what):
    if code:
        sys.exit(f"{what}: {code}")


def allocated(count):
    place = pointer()
    done(cuda.cuMemAlloc_v2(ctypes.byref(place), size(max(count, 1))), "memory")
    return place.value


def uploaded(data):
    place = allocated(len(data))
    done(cuda.cuMemcpyHtoD_v2(pointer(place), data, size(len(data))), "upload")
    return place


def numbers(values):
    return uploaded(b"".join(value.to_bytes(8, "little") for value in values))


def downloaded(place, count):
    data = ctypes.create_string_buffer(count)
    done(cuda.cuMemcpyDtoH_v2(data, pointer(place), size(count)), "download")
    return data.raw


def measure(name, packed, plain):
    prefix = {"lz4": "nvcompBatchedLZ4", "deflate1": "nvcompBatchedDeflate"}[name]
    # Each block begins where any kernel may read.
    data, starts = bytearray(), []
    for block in packed:
        data += bytes(-len(data) % 16)
        starts.append(len(data))
        data += block
    base, lens = uploaded(bytes(data)), [len(block) for block in packed]
    out, order = allocated(BLOCK * BLOCKS), [at % len(packed) for at in range(BLOCKS)]
    sources, source_lens = numbers([base + starts[at] for at in order]), numbers([lens[at] for at in order])
    targets, rooms, made, statuses = numbers([out + BLOCK * at for at in range(BLOCKS)]), numbers([BLOCK] * BLOCKS), allocated(8 * BLOCKS), allocated(4 * BLOCKS)
    options, needed = Options(), size()
    get = getattr(nvcomp, prefix + "DecompressGetTempSize", None) or getattr(nvcomp, prefix + "DecompressGetTempSizeAsync")
    get.argtypes = [size, size, Options, ctypes.POINTER(size), size, pointer]
    done(get(BLOCKS, BLOCK, options, ctypes.byref(needed), BLOCK * BLOCKS, None), "size of the workspace")
    work, run = allocated(needed.value), getattr(nvcomp, prefix + "DecompressAsync")
    run.argtypes = [pointer, pointer, pointer, pointer, size, pointer, size, pointer, Options, pointer, pointer]
    marks = [pointer(), pointer()]
    for mark in marks:
        done(cuda.cuEventCreate(ctypes.byref(mark), 0), "mark")
    best = float("inf")
    for _ in range(ROUNDS):
        done(cuda.cuEventRecord(marks[0], None), "mark")
        done(run(sources, source_lens, rooms, made, BLOCKS, work, needed.value, targets, options, statuses, None), "decompress")
        done(cuda.cuEventRecord(marks[1], None), "mark")
        done(cuda.cuCtxSynchronize(), "decompress")
        took = ctypes.c_float()
        done(cuda.cuEventElapsedTime(ctypes.byref(took), *marks), "time")
        best = min(best, took.value)
    right = not any(downloaded(statuses, 4 * BLOCKS)) and downloaded(out, BLOCK * len(packed)) == plain
    row = {"case": f"decompress/{name}/{BLOCKS}x64KiB", "peer": "nvcomp", "device_ms": round(best, 4), "gb_per_s": round(BLOCK * BLOCKS / best / 1e6, 1), "right": right}
    print(json.dumps(row), flush=True)


def main():
    done(cuda.cuInit(0), "driver")
    context = pointer()
    done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "device")
    done(cuda.cuCtxSetCurrent(context), "device")
    with open(sys.argv[1], "rb") as file:
        plain = file.read()
    plain = plain[: len(plain) // BLOCK * BLOCK]
    blocks = [plain[at : at + BLOCK] for at in range(0, len(plain), BLOCK)]

    def deflated(block):
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        return packer.compress(block) + packer.flush()

    measure("deflate1", [deflated(block) for block in blocks], plain)
    import lz4.block
    measure("lz4", [lz4.block.compress(block, store_size=False) for block in blocks], plain)


main()
