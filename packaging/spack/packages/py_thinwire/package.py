# `make dist` fills in version, checksum and address: dist/spack is the repository for
# `spack repo add`.

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyThinwire(PythonPackage, CudaPackage):
    """Sparse allreduce of gradients for training over slow networks: optimisers for PyTorch."""

    homepage = "https://thinwire.invalid"
    url = "@URL@"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.22:", type="build")
    depends_on("python@3.8:", type=("build", "run"))
    depends_on("py-setuptools@61:", type="build")
    depends_on("py-wheel", type="build")
    depends_on("py-torch@1.13:", type="run")

    requires("platform=linux")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=80 or newer")

    build_directory = "python"  # it compiles the library and puts it into the package

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        args = "-DTHINWIRE_CUDA=OFF"
        if self.spec.satisfies("+cuda"):
            archs = ";".join(self.spec.variants["cuda_arch"].value)
            args = f"-DTHINWIRE_CUDA=ON '-DCMAKE_CUDA_ARCHITECTURES={archs}'"
        env.set("CMAKE_ARGS", args)
