"""The Poisson equation on the unit square, by conjugate gradients on a grid of ranks.

    mpiexec -n 4 python examples/poisson.py --out out

Each rank has a part of the grid. A step exchanges the borders of the parts (`Neighbor_alltoallw`, whose datatypes
describe rows and columns in place) and adds up two dots (`Allreduce`). Prints the number of steps, and how far the
solution is from the one that rank 0 computes alone, by eigenvectors. Draws the solution in out/poisson.png.
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=50, help="inner points along an edge")
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()
n, h = args.points, 1 / (args.points + 1)

world = collectives.Communicator(MPI.COMM_WORLD)
grid = world.Create_cart(MPI.Compute_dims(world.size, 2))
part = [slice(n * c // d, n * (c + 1) // d) for c, d in zip(grid.coords, grid.dims, strict=True)]
rows, columns = (p.stop - p.start for p in part)
x = np.arange(1, n + 1) * h
source = 100 * np.outer(np.sin(np.pi * x), x * (x > 0.5))  # the right-hand side, on the whole square

# What goes to the neighbours above, below, left and right, and what comes from them: rows and columns of an array with
# a border of one point. There is no neighbour beyond the edge of the square, and the border stays 0 there.
sizes = [(1, columns), (1, columns), (rows, 1), (rows, 1)]
inside = [(1, 1), (rows, 1), (1, 1), (1, columns)]
borders = [(0, 1), (rows + 1, 1), (1, 0), (1, columns + 1)]
sent, received = (
    [MPI.DOUBLE.Create_subarray((rows + 2, columns + 2), *where).Commit() for where in zip(sizes, at, strict=True)]
    for at in (inside, borders)
)


def minus_laplace(u):
    """-Laplace u at the inner points of this rank's part, after an exchange of borders."""
    grid.Neighbor_alltoallw([u, sent], [u, received])
    return (4 * u[1:-1, 1:-1] - u[:-2, 1:-1] - u[2:, 1:-1] - u[1:-1, :-2] - u[1:-1, 2:]) / h**2


def dot(a, b):
    """The dot product over all ranks."""
    total = np.array(np.vdot(a, b))
    grid.Allreduce(MPI.IN_PLACE, total)
    return float(total)


solution, residual = np.zeros((rows, columns)), source[part[0], part[1]].copy()
direction = np.pad(residual, 1)
steps, square = 0, dot(residual, residual)
limit = 1e-18 * square
while square > limit:
    image = minus_laplace(direction)
    factor = square / dot(direction[1:-1, 1:-1], image)
    solution += factor * direction[1:-1, 1:-1]
    residual -= factor * image
    square, before = dot(residual, residual), square
    direction[1:-1, 1:-1] = residual + square / before * direction[1:-1, 1:-1]
    steps += 1

parts = grid.gather((part, solution))
if parts is not None:  # on rank 0
    whole = np.empty((n, n))
    for (i, j), values in parts:
        whole[i, j] = values
    values, vectors = np.linalg.eigh((2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)) / h**2)
    alone = vectors @ (vectors.T @ source @ vectors / np.add.outer(values, values)) @ vectors.T
    error = abs(whole - alone).max() / abs(alone).max()
    assert error < 1e-8, error
    print(f"{steps} steps on {' x '.join(map(str, grid.dims))} ranks; the solution of one process, to 8 digits")
    if args.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 4), layout="constrained")
        axes = figure.subplots()
        shown = axes.imshow(whole.T, origin="lower", extent=(0, 1, 0, 1), cmap="YlOrBr")
        axes.set(title=f"-Laplace u = f on {grid.size} ranks", xlabel="x / m", ylabel="y / m")
        for side, line in enumerate((axes.axvline, axes.axhline)):
            for i in range(1, grid.dims[side]):
                line(n * i // grid.dims[side] / n, color="black", linestyle="--")
        figure.colorbar(shown, label="u / K")
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out / "poisson.png", dpi=100)
