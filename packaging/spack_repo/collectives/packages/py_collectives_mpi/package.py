"""The package py-collectives-mpi, for Spack: `spack repo add packaging/spack_repo/collectives`, in a checkout."""

from pathlib import Path

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyCollectivesMpi(PythonPackage):
    """Collectives for Python programs on MPI clusters, with the algorithm chosen per call."""

    git = f"file://{Path(__file__).resolve().parents[5]}"  # this checkout, as long as there is no release

    license("BSD-3-Clause")
    version("main", branch="main")

    variant("mpi", default=True, description="Build the transport for an MPI")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cython@3.1:", type="build")
    depends_on("py-numpy@2:", type=("build", "run"))
    depends_on("mpi", when="+mpi", type=("build", "link", "run"))
    depends_on("py-mpi4py@4:", when="+mpi", type=("build", "run"))

    import_modules = ["collectives"]

    def setup_build_environment(self, env):
        """Name the compiler wrapper of the MPI that was asked for."""
        env.set("COLLECTIVES_MPICC", self.spec["mpi"].mpicc if self.spec.satisfies("+mpi") else "none")
