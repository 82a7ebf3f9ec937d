"""Writes rsa_keys.txt: private keys of RSA of lengths and exponents that no library makes by itself. A line is the length of the signatures, a name
and PKCS#8 in hexadecimal. They are made for tests, from a seed that stands here: they protect nothing.
"""
import random
import sys

SOURCE = random.Random(2048)
# Bits of the modulus, bits of the first prime, the exponent, whether the first prime is the larger one.
KEYS = [
    (2048, 1024, 3, True),
    (2048, 1024, 65537, False),
    (2048, 1024, 4294967297, True),
    (2048, 1027, 17, True),
    (2048, 1040, 65537, True),
    (3065, 1533, 17, True),
    (3071, 1536, 65537, True),
    (4089, 2045, 3, True),
    (4095, 2048, 65539, True),
    (4096, 2048, 65537, False),
]


def is_prime(number):
    if any(number % small == 0 for small in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)):
        return False
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(24):
        power = pow(SOURCE.randrange(2, number - 1), odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def prime(bits, exponent):
    while True:
        number = SOURCE.getrandbits(bits) | 1 << bits - 1 | 1
        if (number - 1) % exponent and is_prime(number):
            try:
                pow(exponent, -1, number - 1)
                return number
            except ValueError:
                pass


def element(tag, content):
    length = len(content)
    if length >= 0x80:
        size = length.to_bytes((length.bit_length() + 7) // 8, "big")
        return bytes([tag, 0x80 | len(size)]) + size + content
    return bytes([tag, length]) + content


def integer(number):
    return element(2, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def pkcs8(p, q, exponent):
    d = pow(exponent, -1, (p - 1) * (q - 1))
    numbers = [0, p * q, exponent, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p)]
    key = element(0x30, b"".join(map(integer, numbers)))
    algorithm = bytes.fromhex("300d06092a864886f70d0101010500")
    return element(0x30, integer(0) + algorithm + element(4, key))


with open(sys.argv[1], "w") as out:
    for bits, first, exponent, larger in KEYS:
        p = q = 1
        while (p * q).bit_length() != bits or (p > q) != larger:
            p, q = prime(first, exponent), prime(bits - first, exponent)
        print((bits + 7) // 8, f"{bits}-bits-prime-of-{first}-exponent-{exponent}", pkcs8(p, q, exponent).hex(), file=out)
