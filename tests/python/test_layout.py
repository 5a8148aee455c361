"""The package's copies of thinwire.h's structures have their sizes and offsets.

    test_layout.py LAYOUT       the program made of layout.c
"""
import ctypes
import subprocess
import sys

from thinwire import library

layout = subprocess.run(sys.argv[1], capture_output=True, text=True, check=True).stdout
for line in layout.splitlines():
    name, size, last = line.split()
    copy = getattr(library, name)
    field = copy._fields_[-1][0]
    ours = (ctypes.sizeof(copy), getattr(copy, field).offset)
    assert ours == (int(size), int(last)), f"{name}: {ours}, in thinwire.h {size} {last}"
    print(f"{name}: {size} bytes")
