"""mpi4py-fft: transforms of distributed arrays, forth and back, in slabs and pencils, real and complex."""

import numpy as np
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray

comm = MPI.COMM_WORLD
for shape, dtype, grid in (((18, 19, 20), "d", (-1,)), ((16, 12, 14), "D", None), ((9, 8), "f", None)):
    fft = PFFT(comm, np.array(shape), dtype=dtype, **({} if grid is None else {"grid": grid}))
    u = newDistArray(fft, False)
    whole = np.random.default_rng(3).random(shape)
    u[:] = whole[u.local_slice()]
    spectrum = fft.forward(u, newDistArray(fft, True)).copy()
    back = fft.backward(spectrum, newDistArray(fft, False))
    assert np.allclose(np.asarray(back), np.asarray(u), atol=1e-5)
    sums = comm.gather(complex(np.asarray(spectrum).sum()), 0)
    if comm.rank == 0:
        print(
            f"{type(comm).__name__}:", shape, dtype, *(f"{s:.3f}" for s in sums)
        )  # plans of FFTW differ from run to run
    fft.destroy()
