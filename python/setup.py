"""Builds libthinwire with cmake and bundles it: pip install ./python

CMAKE_ARGS in the environment is passed on, for instance -DTHINWIRE_CUDA=OFF. In a clone the C
sources are in the folder above, in a source distribution in `library`.

pip shows what a build prints only with -v. So stages are written to the terminal too.
"""
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:     # setuptools before 70
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
BUNDLED = HERE / "library"      # in a source distribution
ROOT = BUNDLED if BUNDLED.exists() else Path(os.environ.get("THINWIRE_SOURCE", HERE.parent))
SOURCES = ("CMakeLists.txt", "LICENSE", "bench", "cmake", "include", "src")


def version():
    header = (ROOT / "include" / "thinwire.h").read_text()
    return ".".join(re.search(rf"TW_VERSION_{part} (\d+)", header)[1]
                    for part in ("MAJOR", "MINOR", "PATCH"))


def say(text):
    """To whoever installs. Lines of the terminal begin after pip's own, which has no end yet."""
    print(f"thinwire: {text}", flush=True)
    if not sys.stdout.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n  thinwire: {text} ")


def run(command):
    """Runs cmake; says how far a build is, from make's or ninja's numbers. Returns its output."""
    said, lines = 0, []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
            found = re.match(r"\[ *(\d+)(?:%|/(\d+))\]", line)
            done = int(found[1]) / int(found[2] or 100) if found else 0
            if int(4 * done) > said and done < 1:
                said = int(4 * done)
                say(f"compiled {25 * said} %")
    if process.returncode != 0:
        say("the build failed; pip install -v shows why")
        raise SystemExit(process.returncode)
    return "".join(lines)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        begin = time.monotonic()
        build = Path(self.get_finalized_command("build").build_temp).resolve()
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DTHINWIRE_TESTS=OFF", "-DTHINWIRE_MPI=OFF",
                   "-DTHINWIRE_COMMAND=OFF", "-DTHINWIRE_SHARED=ON"]
        say("configuring the C library")
        found = run(["cmake", "-S", ROOT, "-B", build, *options,
                     *shlex.split(os.environ.get("CMAKE_ARGS", ""))])
        say("compiling for CPU and GPU, some minutes" if re.search(r"\bCUDA +ON", found) else
            "compiling for CPUs only")
        run(["cmake", "--build", build, "--target", "thinwire_shared", "--parallel",
             str(os.cpu_count())])
        shutil.copy(build / "libthinwire.so", Path(self.build_lib) / "thinwire")
        say(f"built in {time.monotonic() - begin:.0f} s")


class WithSources(sdist):
    """A source distribution holds the C sources too."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for name in SOURCES:
            source, target = ROOT / name, Path(base_dir) / BUNDLED.name / name
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)


class PlatformDistribution(Distribution):
    """The package holds machine code."""

    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    """The wheel fits every Python 3: ctypes loads the machine code."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(version=version(), packages=find_packages(include=["thinwire", "thinwire.*"]),
      cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPython, "sdist": WithSources},
      distclass=PlatformDistribution)
