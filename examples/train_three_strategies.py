"""One network, trained with three strategies: all-reduced gradients, local steps, and a parameter server.

    mpiexec -n 4 python examples/train_three_strategies.py --out out

Data are scikit-learn's handwritten digits. Prints the accuracy of each strategy. Rank 0 then trains alone on whole
batches: with `allreduce` and `parameter_server` (where the last rank serves) the weights must be the same, with
`local_sgd` the accuracy. Draws accuracy against samples in out/train_three_strategies.png. See docs/training.md.
"""

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--out", type=Path, help="a folder for the picture")
args = parser.parse_args()

world = collectives.Communicator(MPI.COMM_WORLD)
digits = train.digits()


def trained(strategy, comm):
    """The weights at the end, as one vector, and the records of the run."""
    data = train.Loader((digits.x_train, digits.y_train), batch=60, drop_last=True, comm=comm)
    net = train.mlp((1, 8, 8), 10, rng=np.random.default_rng(1), dtype=np.float64)
    net, opt = train.distribute(net, train.SGD(net.parameters(), lr=0.1, momentum=0.5), strategy, comm=comm)
    run = train.Run(
        comm=comm,
        state={"net": net, "opt": opt, "data": data},
        evaluate=lambda: train.evaluate(net, digits.x_test, digits.y_test, comm=comm),
    )
    for x, y in run.steps(data, epochs=args.epochs):
        opt.zero_grad()
        loss = train.CrossEntropyLoss()(net(x), y)
        loss.backward()
        opt.step()
        run.log(loss=loss)
    return np.concatenate([p.data.ravel() for p in net.parameters()]), run.records


strategies = {
    "allreduce": train.AllReduce(),
    "local_sgd": train.LocalSGD(every=4),
    "parameter_server": train.ParameterServer(servers=1),
}
found = {name: trained(strategy, world) for name, strategy in strategies.items()}

if world.rank == 0:
    alone, records = trained(train.NoComm(), collectives.Communicator(MPI.COMM_SELF))
    for name, (weights, run) in found.items():
        print(f"{name:16} accuracy {run[-1]['accuracy']:.3f}, one process {records[-1]['accuracy']:.3f}")
        if name == "local_sgd":
            assert abs(run[-1]["accuracy"] - records[-1]["accuracy"]) < 0.05
        else:
            assert np.allclose(weights, alone, rtol=1e-6, atol=1e-8), abs(weights - alone).max()
    if args.out:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for (name, (_, run)), style, width in zip(found.items(), ("-", "--", "k:"), (4, 2, 2), strict=True):
            points = [record for record in run if "accuracy" in record]
            samples, right = [r["samples"] for r in points], [100 * r["accuracy"] for r in points]
            axes.plot(samples, right, style, linewidth=width, label=name)
        axes.set(title=f"digits on {world.size} ranks", xlabel="samples seen by all ranks", ylabel="test accuracy / %")
        axes.legend()
        args.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(args.out / "train_three_strategies.png", dpi=100)
