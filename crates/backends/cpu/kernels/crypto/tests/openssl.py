"""Checks what it reads with OpenSSL (through the package `cryptography`), and signs for the other side.

A line is a verb, an algorithm and fields in hexadecimal, `-` where one is empty. For `sign` the private key is used and a line of the
same fields with the signature is printed. Everything else is checked; the last line printed is the number of lines that were right.
"""
import gzip
import hashlib
import hmac
import subprocess
import sys
import zlib

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, utils
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

HASHES = {"sha256": hashes.SHA256(), "sha384": hashes.SHA384(), "sha512": hashes.SHA512()}


def seal(algorithm, key, nonce, associated, message, text):
    cipher = ChaCha20Poly1305(key) if "chacha" in algorithm else AESGCM(key)
    return cipher.encrypt(nonce, message, associated) == text


def encrypt(algorithm, key, vector, message, text):
    if algorithm.endswith("cbc"):
        pad = 16 - len(message) % 16
        message, mode = message + bytes([pad]) * pad, modes.CBC(vector)
    else:
        mode = modes.CTR(vector)
    cipher = Cipher(algorithms.AES(key), mode).encryptor()
    return cipher.update(message) + cipher.finalize() == text


def derive(algorithm, secret, salt, info, key):
    return HKDF(HASHES[algorithm], len(key), salt, info).derive(secret) == key


def arguments(algorithm):
    if algorithm == "ed25519":
        return ()
    if algorithm.startswith("ecdsa"):
        return (ec.ECDSA(hashes.SHA256() if "p256" in algorithm else hashes.SHA384()),)
    hash = HASHES[algorithm.rsplit("-", 1)[1]]
    pad = padding.PSS(padding.MGF1(hash), hash.digest_size) if "pss" in algorithm else padding.PKCS1v15()
    return pad, hash


def sign(algorithm, private, message, signature):
    """Verifies the signature with the private key's public key, and makes another."""
    key = serialization.load_der_private_key(private, None)
    fixed = 32 if algorithm == "ecdsa-p256-fixed" else 48 if algorithm == "ecdsa-p384-fixed" else 0
    if fixed:
        signature = utils.encode_dss_signature(int.from_bytes(signature[:fixed], "big"), int.from_bytes(signature[fixed:], "big"))
    key.public_key().verify(signature, message, *arguments(algorithm))
    made = key.sign(message, *arguments(algorithm))
    if fixed:
        made = b"".join(number.to_bytes(fixed, "big") for number in utils.decode_dss_signature(made))
    print("verify", algorithm, message.hex() or "-", made.hex())
    return True


def tool(name, data):
    return subprocess.run([name, "-d", "-c", "-q"], input=data, stdout=subprocess.PIPE, check=True).stdout


def unpack(format, data, message):
    if format in ("lz4-frame", "zstd"):
        return tool("lz4" if format == "lz4-frame" else "zstd", data) == message
    return {"deflate": lambda: zlib.decompress(data, -15), "zlib": lambda: zlib.decompress(data), "gzip": lambda: gzip.decompress(data)}[format]() == message


verbs = {
    "seal": seal,
    "encrypt": encrypt,
    "hash": lambda algorithm, message, digest: hashlib.new(algorithm, message).digest() == digest,
    "hmac": lambda algorithm, key, message, tag: hmac.new(key, message, algorithm).digest() == tag,
    "hkdf": derive,
    "sign": sign,
    "unpack": unpack,
}
right = 0
for line in sys.stdin:
    verb, algorithm, *fields = line.split()
    fields = [b"" if field == "-" else bytes.fromhex(field) for field in fields]
    assert verbs[verb](algorithm, *fields), line[:200]
    right += 1
print(right)
