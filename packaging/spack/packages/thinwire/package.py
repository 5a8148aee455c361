# `make dist` fills in version, checksum and address: dist/spack is the repository for
# `spack repo add`.

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Thinwire(CMakePackage, CudaPackage):
    """Sparse allreduce of gradients for training over slow networks: a C library and a command."""

    homepage = "https://thinwire.invalid"
    url = "@URL@"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    variant("shared", default=True, description="Build shared libraries, else static ones")
    variant("mpi", default=True, description="Run over MPI")
    variant("trainer", default=True, description="Build the trainer and the demo")
    variant("nccl", default=False, when="+cuda", description="Run over NCCL")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("jansson")
    depends_on("mpi", when="+mpi")
    depends_on("nccl", when="+nccl")
    depends_on("openblas", when="+trainer")
    depends_on("zlib-api", when="+trainer")
    depends_on("cmocka", type="test")

    requires("platform=linux")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=80 or newer")

    def cmake_args(self):
        args = [
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("THINWIRE_MPI", "mpi"),
            self.define_from_variant("THINWIRE_TRAINER", "trainer"),
            self.define_from_variant("THINWIRE_CUDA", "cuda"),
            self.define("THINWIRE_NCCL", self.spec.satisfies("+nccl")),
            self.define("THINWIRE_JANSSON", True),
            self.define("THINWIRE_TESTS", self.run_tests),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define_from_variant("CMAKE_CUDA_ARCHITECTURES", "cuda_arch"))
        return args

    def test_allreduce(self):
        """four ranks sum without a wrong value"""
        thinwire = which(self.prefix.bin.thinwire)
        thinwire("bench", "allreduce", "--ranks", "4", "--n", "100000", "--verify")
