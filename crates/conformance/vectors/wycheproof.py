#!/usr/bin/env python3
"""Writes the text files beside it from a checkout of Wycheproof (github.com/C2SP/wycheproof, Apache-2.0).

    python3 wycheproof.py CHECKOUT

A line is one vector: its number, its verdict (valid, invalid, acceptable), then its fields in hexadecimal, `-` where one is empty.
A line that begins with a word in brackets names the algorithm, and for signatures the public key, of the lines that follow.
Left out: nonces that are not of 12 bytes and tags that are cut short, which no op takes. `wycheproof_files.txt` names every file of a
checkout, and says which are run and why the others are not; a test compares it with what is here.
"""
import json
import os
import sys

checkout = sys.argv[1]
here = os.path.dirname(os.path.abspath(__file__))


def groups(name):
    with open(os.path.join(checkout, "testvectors_v1", name + "_test.json")) as file:
        return json.load(file)["testGroups"]


def fields(*values):
    return " ".join(value or "-" for value in values)


def write(name, lines):
    with open(os.path.join(here, name), "w") as file:
        file.write("\n".join(lines) + "\n")


def aead():
    for name in ("aes_gcm", "chacha20_poly1305"):
        for group in groups(name):
            if group["ivSize"] != 96 or group["tagSize"] != 128:
                continue
            yield "[chacha20-poly1305]" if "chacha" in name else f"[aes-{group['keySize']}-gcm]"
            for test in group["tests"]:
                yield fields(str(test["tcId"]), test["result"], *(test[field] for field in ("key", "iv", "aad", "msg", "ct", "tag")))


def cbc():
    for group in groups("aes_cbc_pkcs5"):
        yield f"[aes-{group['keySize']}-cbc]"
        for test in group["tests"]:
            yield fields(str(test["tcId"]), test["result"], *(test[field] for field in ("key", "iv", "msg", "ct")))


def hmac():
    for bits in (256, 384, 512):
        for group in groups(f"hmac_sha{bits}"):
            if group["tagSize"] == bits:
                yield f"[sha{bits}]"
                for test in group["tests"]:
                    yield fields(str(test["tcId"]), test["result"], *(test[field] for field in ("key", "msg", "tag")))


def hkdf():
    for bits in (256, 384, 512):
        for group in groups(f"hkdf_sha{bits}"):
            yield f"[sha{bits}]"
            for test in group["tests"]:
                yield fields(str(test["tcId"]), test["result"], test["ikm"], test["salt"], test["info"], str(test["size"]), test["okm"])


def signatures():
    files = [("ecdsa-p256-der", "ecdsa_secp256r1_sha256"), ("ecdsa-p256-fixed", "ecdsa_secp256r1_sha256_p1363"),
             ("ecdsa-p384-der", "ecdsa_secp384r1_sha384"), ("ecdsa-p384-fixed", "ecdsa_secp384r1_sha384_p1363"), ("ed25519", "ed25519")]
    files += [(f"rsa-{bits}-pkcs1-sha{hash}", f"rsa_signature_{bits}_sha{hash}") for bits, hash in ((2048, 256), (2048, 384), (2048, 512), (3072, 256), (4096, 256))]
    added = [(f"rsa-{bits}-pkcs1-sha{hash}", f"rsa_signature_{bits}_sha{hash}") for bits, hash in ((3072, 384), (3072, 512), (4096, 384), (4096, 512))]
    files += [(f"rsa-{bits}-pss-sha{hash}", f"rsa_pss_{bits}_sha{hash}_mgf1_{hash // 8}") for bits, hash in ((2048, 256), (2048, 384), (3072, 256), (4096, 256), (4096, 512))]
    for algorithm, name in files + added + [("rsa-4096-pss-sha384", "rsa_pss_4096_sha384_mgf1_48")]:
        for group in groups(name):
            key = group.get("publicKeyDer") or group["publicKey"]["pk"]
            yield f"[{algorithm}] {key}"
            for test in group["tests"]:
                yield fields(str(test["tcId"]), test["result"], test["msg"], test["sig"])


for name, lines in (("aead", aead), ("cbc", cbc), ("hmac", hmac), ("hkdf", hkdf), ("signature", signatures)):
    write(name + ".txt", lines())
