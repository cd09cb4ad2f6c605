"""mpi4py.futures: an executor over the world, in the program itself or, with `-m mpi4py.futures`, around it."""

import sys

from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor


def square(x):
    return x * x


def use(executor):
    print(
        f"{type(MPI.COMM_WORLD).__name__}:", list(executor.map(square, range(50))), executor.submit(square, 9).result()
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["pool"]:
        with MPIPoolExecutor() as executor:
            use(executor)
    else:
        with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
            if executor is not None:
                use(executor)
