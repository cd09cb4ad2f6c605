"""schwimmbad's pool under emcee: a master deals out the walkers of a sampler, workers return their likelihoods."""

import sys

import emcee
import numpy as np
from mpi4py import MPI
from schwimmbad import MPIPool


def log_likelihood(x):
    return -0.5 * float(x @ x)


with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    state = np.random.RandomState(7)
    sampler = emcee.EnsembleSampler(12, 3, log_likelihood, pool=pool)
    sampler.random_state = state.get_state()
    sampler.run_mcmc(state.randn(12, 3), 40)
    print(f"{type(MPI.COMM_WORLD).__name__}:", sampler.get_chain().sum().hex(), sampler.acceptance_fraction.tolist())
