#!/usr/bin/env python3
"""Writes what Wycheproof has not: digests by hashlib, AES in counter mode by OpenSSL, and compressed data by zlib, gzip, lz4 and zstd.

    python3 -m pip install cryptography; apt-get install lz4 zstd
    python3 others.py

The lines are as in wycheproof.py: `hash.txt` has message and digest, `ctr.txt` key, initial vector, message and text, `compressed.txt`
compressed data and the SHA-256 of the message, `signing.txt` under each private key its public key, message and OpenSSL's signature, which
is the only one where the algorithm is not random. The keys of `signing.txt` are new with every run.
"""
import gzip
import hashlib
import os
import subprocess
import zlib

from cryptography.hazmat.primitives import hashes as digests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

here = os.path.dirname(os.path.abspath(__file__))


def pattern(length, seed):
    """The same bytes everywhere: the chained digests of a number."""
    made, block = b"", str(seed).encode()
    while len(made) < length:
        block = hashlib.sha256(block).digest()
        made += block
    return made[:length]


def text(length):
    """Bytes with repeats near and far."""
    words = [pattern(3 + n % 9, n) for n in range(40)]
    made, n = b"", 1
    while len(made) < length:
        n = n * 1103515245 + 12345 & 0x7FFFFFFF
        made += words[n >> 16 & 31 if n & 3 else n >> 16 & 7]
    return made[:length]


def lines(name, rows):
    with open(os.path.join(here, name), "w") as file:
        for number, row in enumerate(rows, 1):
            head = isinstance(row, str)
            file.write(("[" + row if "]" in row else f"[{row}]") + "\n" if head else " ".join([str(number), row[0]] + [field.hex() or "-" for field in row[1:]]) + "\n")


def hashes():
    for name in ("sha256", "sha384", "sha512"):
        yield name
        for length in (0, 1, 3, 31, 55, 56, 57, 63, 64, 65, 111, 112, 113, 119, 120, 127, 128, 129, 200, 1000):
            message = b"abc" if length == 3 else pattern(length, length)
            yield "valid", message, hashlib.new(name, message).digest()


def counted():
    for bits in (128, 192, 256):
        yield f"aes-{bits}-ctr"
        for length in (0, 1, 15, 16, 17, 33, 100, 250, 1000):
            for vector in (bytes(16), pattern(16, length), b"\xff" * 16, bytes(8) + b"\xff" * 8, b"\x01" * 12 + b"\xff" * 4):
                key, message = pattern(bits // 8, bits), pattern(length, 7)
                cipher = Cipher(algorithms.AES(key), modes.CTR(vector)).encryptor()
                yield "valid", key, vector, message, cipher.update(message) + cipher.finalize()


def tool(data, *command):
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout


def deflated(message, level, bits, strategy=zlib.Z_DEFAULT_STRATEGY):
    packer = zlib.compressobj(level, zlib.DEFLATED, bits, 9, strategy)
    return packer.compress(message) + packer.flush()


def compressed():
    messages = [b"", b"a", b"abcabcabcabcabcabcabc", bytes(3000), text(1200), pattern(300, 1), text(700) + pattern(100, 2) + text(500)]
    kinds = [(0, zlib.Z_DEFAULT_STRATEGY), (1, zlib.Z_DEFAULT_STRATEGY), (6, zlib.Z_DEFAULT_STRATEGY), (9, zlib.Z_DEFAULT_STRATEGY), (6, zlib.Z_FIXED), (6, zlib.Z_HUFFMAN_ONLY), (6, zlib.Z_RLE)]
    for name, bits in (("deflate", -15), ("zlib", 15), ("gzip", 31)):
        yield name
        for message in messages:
            for level, strategy in kinds:
                yield "valid", deflated(message, level, bits, strategy), message
    yield "valid", gzip.compress(b"one ", 6, mtime=1) + gzip.compress(b"", 6, mtime=1) + gzip.compress(b"two", 1, mtime=0), b"one two"
    yield "lz4-frame"
    for message in messages:
        for options in ((), ("-9",), ("-BD", "-B4"), ("-BX",), ("--content-size",), ("--no-frame-crc",), ("-12", "-BD", "-B4", "-BX")):
            yield "valid", tool(message, "lz4", "-c", "-z", *options), message
    long = text(4000) * 20 + text(9000)
    yield "valid", tool(long, "lz4", "-c", "-z", "-9", "-BD", "-B4"), long
    yield "valid", bytes.fromhex("5a2a4d180300000061626304224d1860408200000000") + tool(b"after", "lz4", "-c", "-z"), b"after"
    yield "zstd"
    for message in messages:
        for options in (("-1",), ("-3",), ("-19",), ("--fast=5",), ("--no-check", "-3"), ("--ultra", "-22")):
            yield "valid", tool(message, "zstd", "-c", "-q", *options), message
    yield "valid", tool(b"one ", "zstd", "-c", "-q") + tool(b"two", "zstd", "-c", "-q"), b"one two"
    yield "valid", bytes.fromhex("502a4d1803000000616263") + tool(b"after", "zstd", "-c", "-q"), b"after"


def signing():
    rsa_keys = {bits: rsa.generate_private_key(65537, bits) for bits in (2048, 3072, 4096)}
    kinds = [("ed25519", ed25519.Ed25519PrivateKey.generate(), ())]
    kinds += [("ecdsa-p256-der", ec.generate_private_key(ec.SECP256R1()), (ec.ECDSA(digests.SHA256()),)),
              ("ecdsa-p384-der", ec.generate_private_key(ec.SECP384R1()), (ec.ECDSA(digests.SHA384()),))]
    for bits, hash in ((2048, digests.SHA256()), (2048, digests.SHA512()), (3072, digests.SHA384()), (4096, digests.SHA256())):
        kinds.append((f"rsa-{bits}-pkcs1-{hash.name}", rsa_keys[bits], (padding.PKCS1v15(), hash)))
        kinds.append((f"rsa-{bits}-pss-{hash.name}", rsa_keys[bits], (padding.PSS(padding.MGF1(hash), hash.digest_size), hash)))
    for name, key, how in kinds:
        yield name + "] " + key.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).hex()
        public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        for length in (0, 1, 32, 200):
            message = pattern(length, length)
            yield "valid", public, message, key.sign(message, *how)


lines("hash.txt", hashes())
lines("ctr.txt", counted())
lines("compressed.txt", (row if isinstance(row, str) else (*row[:2], hashlib.sha256(row[2]).digest()) for row in compressed()))
lines("signing.txt", signing())
