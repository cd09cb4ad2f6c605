"""The two-dimensional Fourier transform of a matrix whose rows are divided over the ranks.

    mpiexec -n 4 python examples/fft_transpose.py --out out

A rank transforms its rows, the matrix is transposed by one `Alltoallv`, and the rank transforms what are its rows then:
columns of the matrix. Rows and columns need not be divisible by the number of ranks. Prints the strongest wave of the
image, after rank 0 has compared the spectrum with numpy.fft.fft2. Draws image and spectrum in out/fft_transpose.png.
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives

parser = argparse.ArgumentParser()
parser.add_argument("--shape", type=int, nargs=2, default=[45, 62], help="rows and columns")
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()

comm = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = comm.rank, comm.size


def parts(n):
    """Where each rank's part of n rows begins, and the end of the last one."""
    return np.arange(SIZE + 1) * n // SIZE


def transpose(own, rows):
    """This rank's rows of the transposed matrix. ``own`` are its rows of a matrix with so many ``rows`` in all."""
    columns = own.shape[1]
    high, wide = np.diff(parts(rows)), np.diff(parts(columns))
    blocks = np.concatenate([own[:, a:b].T.ravel() for a, b in zip(parts(columns), parts(columns)[1:], strict=False)])
    arrived = np.empty(rows * wide[RANK], own.dtype)
    comm.Alltoallv([blocks, len(own) * wide], [arrived, high * wide[RANK]])
    cuts = np.split(arrived, np.cumsum(high * wide[RANK])[:-1])
    return np.hstack([cut.reshape(wide[RANK], n) for cut, n in zip(cuts, high, strict=True)])


rows, columns = args.shape
x, y = np.meshgrid(np.arange(columns), np.arange(rows))  # in mm
waves = 2 * np.cos(2 * np.pi * (0.2 * x + 0.1 * y)) + np.sin(2 * np.pi * (0.3 * y - 0.1 * x))
image = waves * np.exp(-((x - columns / 2) ** 2 + (y - rows / 2) ** 2) / 100)
own = image[parts(rows)[RANK] : parts(rows)[RANK + 1]]

half = transpose(np.fft.fft(own, axis=1), rows)  # columns of the matrix, each in one piece
spectrum = transpose(np.fft.fft(half, axis=1), columns)  # rows again

gathered = comm.gather(spectrum)
if gathered is not None:  # on rank 0
    whole = np.concatenate(gathered)
    alone = np.fft.fft2(image)
    assert np.allclose(whole, alone, rtol=0, atol=1e-9 * abs(alone).max())
    high, wide = np.fft.fftfreq(rows), np.fft.rfftfreq(columns)
    power = abs(whole[:, : len(wide)]) / image.size
    across, along = (of[i] for of, i in zip((high, wide), np.unravel_index(power.argmax(), power.shape), strict=True))
    print(f"the strongest wave: {along:.2f} and {across:.2f} per mm; the spectrum of one process")
    if args.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.imshow(image, cmap="gray", origin="lower", aspect="auto")
        left.set(title="the image", xlabel="x / mm", ylabel="y / mm")
        edges = (0, wide[-1], -0.5, 0.5)
        shifted = np.fft.fftshift(power, axes=0)
        shown = right.imshow(shifted, cmap="Blues", origin="lower", extent=edges, aspect="auto")
        right.set(
            title=f"its spectrum, from {SIZE} ranks", xlabel="waves along x / mm⁻¹", ylabel="waves along y / mm⁻¹"
        )
        figure.colorbar(shown, label="amplitude (brightness)")
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out / "fft_transpose.png", dpi=100)
