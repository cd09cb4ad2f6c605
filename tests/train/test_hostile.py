"""Programs that end badly: an exception in the loop on one rank ends all ranks, and says so."""

import pytest
from scripts import run

LOOP = """
from collectives import train
x, y = np.random.default_rng(0).standard_normal((60, 6)), np.arange(60) % 3
net = train.mlp((6,), 3, rng=np.random.default_rng(1))
net, opt = train.distribute(net, train.SGD(net.parameters(), 0.1), comm=comm)
data = train.Loader((x, y), 8, comm=comm)
training = train.Run(comm=comm, state=dict(net=net, opt=opt, data=data), progress="lines")
for step, (a, b) in enumerate(training.steps(data, epochs=200)):
    opt.zero_grad()
    if step == 20 and rank == WHO:
        BAD
    train.CrossEntropyLoss()(net(a), b).backward()
    opt.step()
report("trained")
"""


@pytest.mark.quick("openmpi-1", "mpich-0")
@pytest.mark.parametrize("who", [0, 1])
def test_an_exception_on_one_rank_ends_all(mpi, who):
    code, printed = run(mpi, LOOP.replace("WHO", str(who)).replace("BAD", "raise ArithmeticError('here')"))
    assert code != 0
    assert "ArithmeticError: here" in printed
    assert "trained" not in printed


@pytest.mark.quick("0")
@pytest.mark.parametrize("who", [0, 1])
def test_a_break_on_one_rank_is_an_error_on_others(who):
    """The rank that has left the loop goes to the end of its program. The others wait for it, until it is gone."""
    code, printed = run(
        "openmpi", LOOP.replace("WHO", str(who)).replace("BAD", "break"), env={"COLLECTIVES_TIMEOUT": "10"}
    )
    assert code != 0
    assert f"rank {who}: trained" in printed
    assert f"rank {1 - who}: trained" not in printed
    assert "Error" in printed or "CollectiveTimeout" in printed or "PeerFailure" in printed
