"""Builds libthinwire with cmake and bundles it: pip install ./python

CMAKE_ARGS in the environment is passed on, for instance -DTHINWIRE_CUDA=OFF.
"""
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:     # setuptools before 70
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(os.environ.get("THINWIRE_SOURCE", Path(__file__).resolve().parent.parent))


def version():
    header = (ROOT / "include" / "thinwire.h").read_text()
    return ".".join(re.search(rf"TW_VERSION_{part} (\d+)", header)[1]
                    for part in ("MAJOR", "MINOR", "PATCH"))


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        build = Path(self.get_finalized_command("build").build_temp).resolve()
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DTHINWIRE_TESTS=OFF", "-DTHINWIRE_MPI=OFF",
                   "-DTHINWIRE_COMMAND=OFF", "-DTHINWIRE_SHARED=ON"]
        subprocess.run(["cmake", "-S", ROOT, "-B", build, *options,
                        *shlex.split(os.environ.get("CMAKE_ARGS", ""))], check=True)
        subprocess.run(["cmake", "--build", build, "--target", "thinwire_shared", "--parallel",
                        str(os.cpu_count())], check=True)
        shutil.copy(build / "libthinwire.so", Path(self.build_lib) / "thinwire")


class PlatformDistribution(Distribution):
    """The package holds machine code."""

    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    """The wheel fits every Python 3: ctypes loads the machine code."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(version=version(), packages=find_packages(include=["thinwire", "thinwire.*"]),
      cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython},
      distclass=PlatformDistribution)
