#!/bin/sh
# An encrypted store beside zstd -1, the disk, and zstd with age, over the same mixed files, in one run:
#   sh docs/peers/store.sh target/release/panoply /some/folder 4096
# needs age, zstd and python3. Rates are of the plain bytes; everything that is written is synced. Of each the wall clock and, behind it,
# the seconds of processor time, which other processes hardly change.
set -eu
panoply=$(realpath "$1") folder=$2 mib=${3:-1024}
work=$(mktemp -d "$folder/panoply-peers-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export XDG_STATE_HOME="$work/state"

# Half text, a quarter numbers, a quarter noise; files of 64 KiB to 64 MiB.
python3 - "$mib" <<'P'
import os, random, struct, sys
left, sizes, number = int(sys.argv[1]) << 20, [1 << 16] * 16 + [1 << 20] * 8 + [1 << 24] * 2 + [1 << 26], 0
random.seed(1)
words = "the device of an op that is sealed and written to a queue before its outcome".split()
text = " ".join(random.choice(words) if random.random() < .86 else str(random.getrandbits(24)) for _ in range(1 << 20)).encode()
numbers = b"".join(struct.pack("<f", 1 + random.random()) for _ in range(1 << 20))
os.mkdir("files")
while left > 0:
    size = min(left, sizes[number % len(sizes)])
    kind = number % 4
    pattern = text if kind < 2 else numbers if kind == 2 else None
    with open(f"files/{number:05}", "wb") as file:
        file.write(os.urandom(size) if pattern is None else (pattern * (size // len(pattern) + 1))[:size])
    left, number = left - size, number + 1
P
sync
age-keygen -o age.key 2>/dev/null
to=$(age-keygen -y age.key)
"$panoply" store init safe --key-file safe.key --generate >/dev/null

measure() { # name, command
    cat files/* >/dev/null # all of it is in memory before each
    python3 - "$mib" "$1" "$2" <<'P'
import resource, subprocess, sys, time
mib, name, command = int(sys.argv[1]), sys.argv[2], sys.argv[3]
start = time.time()
subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
seconds, used = time.time() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{name:28} {mib * 1.048576 / seconds:8.0f} MB/s {used.ru_utime + used.ru_stime:8.2f} s of processor")
P
}
measure "disk alone" "tar c files | dd of=raw bs=4M conv=fsync 2>/dev/null"; rm raw
measure "zstd -1 -T2, to nowhere" "tar c files | zstd -1 -T2 -q -c >/dev/null"
measure "zstd -1 and age, put" "tar c files | zstd -1 -T2 -q | age -r $to -o out.age && sync out.age"
measure "the same, zstd as it is" "tar c files | zstd -1 -q | age -r $to -o plain.age && sync plain.age"; rm plain.age
measure "panoply store put" "'$panoply' store put safe files --key-file safe.key"
measure "zstd and age, get" "mkdir back && age -d -i age.key out.age | zstd -d -q | tar x -C back && sync -f back"; rm -r back
measure "panoply store get" "'$panoply' store get safe --all --to again --key-file safe.key"
cmp files/00003 again/files/00003
