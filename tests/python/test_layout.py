"""The package's copies of thinwire.h's structures are as large, and end alike: test_layout.py LAYOUT,
the program made of layout.c."""
import ctypes
import subprocess
import sys

from thinwire import library

for line in subprocess.run(sys.argv[1], capture_output=True, text=True, check=True).stdout.split("\n"):
    if not line:
        continue
    name, size, last = line.split()
    copy = getattr(library, name)
    field = copy._fields_[-1][0]
    ours = (ctypes.sizeof(copy), getattr(copy, field).offset)
    assert ours == (int(size), int(last)), f"{name}: {ours} here, {size} {last} in thinwire.h"
    print(f"{name}: {size} bytes")
