"""Builds libthinwire with cmake and bundles it: pip install ./python

CMAKE_ARGS in the environment is passed on, for instance -DTHINWIRE_CUDA=OFF.
"""
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent


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
    """The wheel holds machine code."""

    def has_ext_modules(self):
        return True


setup(name="thinwire", version=version(), packages=["thinwire", "thinwire.integrations"], python_requires=">=3.8",
      description="Sums gradients over thin wires: sends what matters, keeps the rest",
      license="MIT", cmdclass={"build_py": BuildWithLibrary}, distclass=PlatformDistribution)
