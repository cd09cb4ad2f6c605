"""k-means of points that are divided over the ranks.

    mpiexec -n 4 python examples/kmeans.py --out out

In each step a rank adds up its own points by their nearest centre. One `Allreduce` of these sums and of the numbers of
points gives all ranks the new centres. Prints the steps and the sizes of the clusters, after rank 0 has compared the
centres with those that one process finds from all points. Draws points and centres in out/kmeans.png.
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=20_000, help="of each rank")
parser.add_argument("--clusters", type=int, default=5)
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()
k = args.clusters
if args.points < k:
    parser.error("--points: the first centres are points of rank 0, which needs one for each cluster")


def nearest(points, centres):
    """The number of the centre that is nearest to each point."""
    return ((points[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)


def k_means(points, comm):
    """The centres, the points of each, and the number of steps. ``points`` are this rank's; it begins with rank 0's."""
    centres = comm.bcast(points[:k].copy())
    steps, moved, sizes = 0, None, np.zeros(k, int)
    while moved is None or not np.allclose(moved, centres, rtol=0, atol=1e-9):
        centres = centres if moved is None else moved
        totals = np.zeros((k, 3))  # the sums of both coordinates, and the number of points
        np.add.at(totals, nearest(points, centres), np.column_stack([points, np.ones(len(points))]))
        comm.Allreduce(MPI.IN_PLACE, totals)
        moved, sizes = totals[:, :2] / np.maximum(totals[:, 2:], 1), totals[:, 2].astype(int)
        steps += 1
    return moved, sizes, steps


world = collectives.Communicator(MPI.COMM_WORLD)
angles = 2 * np.pi * np.arange(k) / k
chance = np.random.default_rng(world.rank)
own = np.column_stack([8 * np.cos(angles), 8 * np.sin(angles)])[chance.integers(0, k, args.points)]
own = own + 1.5 * chance.standard_normal(own.shape)

centres, sizes, steps = k_means(own, world)
everything = world.gather(own)
if everything is not None:  # on rank 0
    points = np.concatenate(everything)
    alone = k_means(points, collectives.Communicator(MPI.COMM_SELF))
    assert np.allclose(centres, alone[0], atol=1e-6), abs(centres - alone[0]).max()
    assert np.array_equal(sizes, alone[1])
    print(f"{steps} steps; clusters of {sizes.tolist()} points; the centres of one process")
    if args.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 4.4), layout="constrained")
        axes = figure.subplots()
        few = points[:: max(1, len(points) // 3000)]
        axes.scatter(few[:, 0], few[:, 1], c=nearest(few, centres), cmap="Set2", s=3)
        axes.scatter(centres[:, 0], centres[:, 1], c="black", marker="x", s=60, label="centres")
        axes.set(title=f"k-means on {world.size} ranks", xlabel="x / mm", ylabel="y / mm", aspect="equal")
        axes.legend()
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out / "kmeans.png", dpi=100)
