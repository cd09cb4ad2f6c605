"""Synchronous training with a parameter server."""

from __future__ import annotations

from typing import Any

from ..server.clocks import Policy
from .central import Central


class ParameterServer(Central):
    """Synchronous: when the gradients of all workers are there, servers fold them in rank order into one update.

    * `servers`: the number of servers (default 1). Parameters are divided among them by bytes.
    * `beside`: whether servers are threads of the first ranks, which train, too. By default the last ranks are servers
      and do not train: they serve within `distribute`. Threads need MPI.THREAD_MULTIPLE.
    * `backup`: whether each part is on two servers. An update is acknowledged when both have it. If one of them dies,
      under Open MPI's ``mpiexec --with-ft ulfm``, the others go on with the other one.
    * `tables`: `Table`s by name, whose rows are on the servers only.
    * `bucket_bytes`: the longest bucket, see `Strategy`.

    The optimizer works on the servers, each of which has a copy of it for its part of the parameters; it must work
    element by element, as SGD and Adam do. ``opt.step()`` pushes and pulls. The state of the optimizer, but for its
    learning rates, is on the servers, and so in the strategy's. Servers follow the learning rates; a change of another
    option, such as the momentum, is a ValueError in the step. So is a change of parameters by the program, unless all
    workers made it by ``load_state_dict`` of the network or of modules in it; on a GPU it is undone. The update uses
    the mean gradient over the samples of all workers, as `AllReduce` does, and all workers go on with the same
    parameters (Li et al., OSDI 2014, sec. 3.4, with sequential consistency).

    The end: `close` lets the servers go, as `Run` does after its last step. Then all ranks go on together, with the
    same parameters. ``worker`` says whether this rank trains. Until `close` the functions of this package, if they are
    given the communicator of all ranks, work on the one of the ranks that train, ``comm``.

    A worker sends and receives the parameters' bytes n once in a step, and a server ``2 n workers / servers``. Servers
    hold a gradient of each worker. The slowest worker sets the pace.

    Raises ValueError for `servers` below 1, and for `backup` with one server. `distribute` raises ValueError on all
    ranks for as many servers as ranks or, with `beside`, for more; for parameters of 16 bits, for an optimizer that has
    made steps or that needs parameters in their shapes (Adafactor), and for `beside` without MPI.THREAD_MULTIPLE.
    """

    policy = Policy(staleness=0, fold=True)
    replicated = True
    on_device = True

    def __init__(self, servers: int = 1, **how: Any) -> None:
        super().__init__(servers, **how)
