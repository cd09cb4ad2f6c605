"""Small NumPy models in float64, trained in one process and on a mesh of ranks, for tests of pipelines."""

import numpy as np

from collectives import train
from collectives.train.pipeline.pipedream_2bw import PipeDream2BW

NEAR = 1e-10
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((22, 8)), RNG.integers(0, 3, 22)
STEPS = 3
LOSS = train.CrossEntropyLoss()


def linear(rng, inputs, outputs):
    return train.Linear(inputs, outputs, rng=rng, dtype=np.float64)


def chain(dropout=False):
    """16 layers, of which the first and the last are the widest."""
    rng = np.random.default_rng(1)
    layers = [linear(rng, 8, 20)]
    for number in range(7):
        layers.append(linear(rng, 20 if number == 0 else 9, 9))
        layers.append(train.Dropout(0.3, random=train.Random(5, f"{number}", 0)) if dropout else train.ReLU())
    return train.Sequential(*layers, linear(rng, 9, 3))


def sgd(parameters):
    return train.SGD(parameters, 0.002, momentum=0.9, weight_decay=0.01)


def alone(dropout=False, clip=None):
    """The weights and the last loss of one process."""
    from mpi4py import MPI

    net = chain(dropout)
    net, opt = train.distribute(net, sgd(net.parameters()), train.AllReduce(clip_norm=clip), comm=MPI.COMM_SELF)
    for _ in range(STEPS):
        opt.zero_grad()
        loss = LOSS(net(X), Y)
        loss.backward()
        opt.step()
    return net.state_dict(), float(loss)


def on_mesh(comm, shape, schedule="1f1b", clip=None, dropout=False, **options):
    """The weights of this rank, the mean loss over the pipelines, and the report, after as many steps."""
    mesh = train.Mesh(comm, **shape)
    pipe = train.Pipeline(chain(dropout), mesh.pipeline, schedule=schedule, **options)
    pipe, opt = train.distribute(pipe, sgd(pipe.parameters()), train.AllReduce(clip_norm=clip), mesh=mesh)
    parts = np.array_split(np.arange(len(X)), mesh.data.size)[mesh.data.rank]
    for _ in range(STEPS):
        opt.zero_grad()
        loss = pipe.step(X[parts], Y[parts], LOSS)
        opt.step()
    total = mesh.data.allreduce(loss * loss.samples) / len(X)
    report, state = pipe.report(), pipe.state_dict()
    pipe.free()
    mesh.free()
    return state, total, report


def assert_same(state, expected):
    assert state
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], atol=NEAR, rtol=0)


def delayed(batches, stages, stage, delay):
    """The law of a stream without a flush, in one process: each stage's gradient is of older weights.

    ``delay(stage, number)`` says how many steps older, for step ``number``. Returns the weights of all parameters.
    `stage` has the stage of every parameter by name.
    """
    net = chain()
    parameters = {p.name: p for p in net.parameters()}
    opt = sgd(net.parameters())
    history = [net.state_dict()]
    for number, (x, y) in enumerate(batches):
        for name, parameter in parameters.items():
            parameter.data[...] = history[number - min(delay(stage[name]), number)][name]
        opt.zero_grad()
        LOSS(net(x), y).backward()
        for name, parameter in parameters.items():
            parameter.data[...] = history[number][name]
        opt.step()
        history.append(net.state_dict())
    return history[-1]


def stream(comm, schedule, micro_batches, batches):
    """The weights, the numbers of versions and the losses of a stream; and the bounds of the stages."""
    if schedule == "pipedream_2bw":
        schedule = PipeDream2BW(accumulate=micro_batches)
    pipe = train.Pipeline(chain(), comm, schedule=schedule, micro_batches=micro_batches)
    losses = pipe.stream(batches, LOSS, sgd(pipe.parameters()))
    report, state = pipe.report(), pipe.state_dict()
    pipe.free()
    return state, report, losses
