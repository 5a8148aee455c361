"""pip install without CUDA, as a user sees it on a terminal: from a clone and from a source
distribution. Each shows its stages and takes less than a minute of CPU time, on any number of
cores; the time on the clock depends on what else the machine does.

    make test-clients; python3 tests/clients/test_install.py
"""
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 60
STAGES = ("configuring the C library", "compiling for CPUs only", "compiled 25 %", "compiled 50 %",
          "compiled 75 %", "built in")


def on_terminal(*command, **environment):
    """What a command shows on a terminal; its seconds on the clock and of CPU time."""
    begin = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(environment)
        os.environ.pop("CMAKE_C_COMPILER_LAUNCHER", None)      # a cache would be too fast
        os.execv(command[0], command)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:     # the child has ended
            part = b""
        if not part:
            break
        shown += part
    _, status, used = os.wait4(child, 0)
    text = shown.decode(errors="replace")
    assert status == 0, text[-3000:]
    return text, time.monotonic() - begin, used.ru_utime + used.ru_stime


def check(folder, what, source):
    """Installs into an environment of its own, which has nothing else."""
    home = folder / what
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    text, seconds, computed = on_terminal(str(home / "bin/pip"), "install", "--no-cache-dir",
                                          str(source), CMAKE_ARGS="-DTHINWIRE_CUDA=OFF")
    for stage in STAGES:
        assert f"thinwire: {stage}" in text, (stage, text)
    version = subprocess.run([home / "bin/python", "-c", "print(__import__('thinwire').version())"],
                             cwd=folder, check=True, capture_output=True, text=True).stdout.strip()
    assert computed < SECONDS, f"{what}: {computed:.1f} s of CPU time"
    print(text.replace("\b", ""), end="")
    print(f"ok {what}: {version}, {seconds:.1f} s, {computed:.1f} s of CPU time", flush=True)


def make_sdist(folder):
    tools = folder / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    subprocess.run([tools / "bin/pip", "install", "--quiet", "build"], check=True)
    shutil.copytree(ROOT / "python", folder / "python")     # setuptools writes beside its sources
    subprocess.run([tools / "bin/python", "-m", "build", "--sdist", "--outdir", folder,
                    folder / "python"], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL,
                   env=dict(os.environ, THINWIRE_SOURCE=str(ROOT)))
    return next(folder.glob("thinwire-*.tar.gz"))


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        clone = folder / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        check(folder, "from a clone", clone / "python")
        check(folder, "from a source distribution", make_sdist(folder))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
