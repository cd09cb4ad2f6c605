"""The ranks, the batch and the loss of the programs that train pipelines of torch modules."""

import torch
from mpi4py import MPI

import collectives

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(22, 8, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(3, (22,), generator=GENERATOR)
LOSS = torch.nn.functional.cross_entropy
