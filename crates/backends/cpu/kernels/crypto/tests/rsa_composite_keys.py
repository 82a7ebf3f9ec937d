"""Writes rsa_composite_keys.txt: private keys of RSA whose numbers fit together, though p, q or both are products of two primes. A line is the length of
the signatures, a name and PKCS#8 in hexadecimal. They are made for tests, from a seed that stands here.
"""
import random
import sys
from math import gcd, lcm

SOURCE = random.Random(77)
EXPONENT = 65537
NAME = bytes.fromhex("300d06092a864886f70d0101010500")


def is_prime(number):
    if any(number % small == 0 for small in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)):
        return False
    return pow(2, number - 1, number) == 1 and pow(3, number - 1, number) == 1


def prime(bits):
    while True:
        number = SOURCE.getrandbits(bits) | 1 << bits - 1 | 1 << bits - 2 | 1
        if (number - 1) % EXPONENT and is_prime(number):
            return number


def composite():
    while True:
        number = prime(512) * prime(512)
        if number.bit_length() == 1024 and gcd(EXPONENT, number - 1) == 1:
            return number


def element(tag, content):
    length = len(content)
    if length >= 0x80:
        size = length.to_bytes((length.bit_length() + 7) // 8, "big")
        return bytes([tag, 0x80 | len(size)]) + size + content
    return bytes([tag, length]) + content


def integer(number):
    return element(2, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def line(name, p, q):
    d = pow(EXPONENT, -1, lcm(p - 1, q - 1))
    numbers = [0, p * q, EXPONENT, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p)]
    key = element(0x30, b"".join(map(integer, numbers)))
    return f"256 {name} {element(0x30, integer(0) + NAME + element(4, key)).hex()}\n"


p = composite()
sys.stdout.write(line("composite-p", p, prime(1024)))
q = composite()
sys.stdout.write(line("composite-q", prime(1024), q))
sys.stdout.write(line("composite-both", p, q))
