"""A character model on any number of ranks, cut over all of them or over some: as in one process, in float64.

``mpiexec -n 4 python -m pytest tests/train/programs/tensor_transformer.py``
"""

import math

import pytest
import torch
from mpi4py import MPI
from torch.nn import functional

import collectives
from collectives import train
from collectives.train.torch.tensor import ParallelCrossEntropy
from collectives.train.torch.transformer import transformer

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
NEAR = 1e-10
WIDTH, HEADS, LAYERS, CONTEXT, BATCH, STEPS = 20, 5, 2, 11, 6, 4
TEXT = train.characters(CONTEXT, limit=4000)
VOCABULARY = len(TEXT.alphabet)
X, Y = torch.from_numpy(TEXT.x), torch.from_numpy(TEXT.y)


def model(comm=None, **options):
    given = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "dtype": torch.float64, **options}
    return transformer(VOCABULARY, CONTEXT, comm=comm, **given)


def batch(step):
    return X[step * BATCH : (step + 1) * BATCH], Y[step * BATCH : (step + 1) * BATCH]


def alone(clip=None, steps=STEPS, **options):
    """Losses, norms and weights of one process that has the whole model."""
    net = model(**options)
    opt = torch.optim.AdamW(net.parameters(), 0.01)
    torch.manual_seed(7)
    losses, norms = [], []
    for step in range(steps):
        opt.zero_grad()
        x, y = batch(step)
        loss = functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(net.parameters(), math.inf if clip is None else clip)))
        opt.step()
        losses.append(loss.item())
    return losses, norms, net


def near(found, expected, bound=NEAR):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).abs().max() < bound, name


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_no_samples(sequence_parallel):
    """As the last batch of an epoch may have on some ranks."""
    net, loss_fn = model(COMM, sequence_parallel=sequence_parallel), ParallelCrossEntropy(VOCABULARY, COMM)
    logits = net(X[:0])
    assert (logits.shape[:2], logits.dtype) == ((0, CONTEXT), torch.float64)
    loss_fn(logits, Y[:0]).nan_to_num().backward()
    assert all(not p.grad.nan_to_num().any() for p in net.parameters())


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_training_is_that_of_one_process(sequence_parallel, dropout):
    """Step for step; with dropout, too, since masks do not depend on the cut."""
    options = {"sequence_parallel": sequence_parallel, "dropout": dropout}
    losses, _, whole = alone(**options)
    net, loss_fn = model(COMM, **options), ParallelCrossEntropy(VOCABULARY, COMM)
    near(train.tensor.whole_state(net, COMM), dict(model().state_dict()), 1e-15)
    opt = torch.optim.AdamW(net.parameters(), 0.01)
    torch.manual_seed(7)
    for step in range(STEPS):
        opt.zero_grad()
        x, y = batch(step)
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        assert loss.item() == pytest.approx(losses[step], abs=NEAR)
    near(train.tensor.whole_state(net, COMM), dict(whole.state_dict()))
    digests = COMM.allgather([data.tobytes() for _, data in train.tensor.replicas.replicated(net)])
    assert all(one == digests[0] for one in digests)
    assert losses[-1] < losses[0] - 0.1


def test_the_whole_model_is_torch_s_own():
    """Beside torch.nn.TransformerEncoderLayer, whose rows of queries, keys and values come by kind, ours by head."""
    net = model()
    x = X[:BATCH]
    hidden = net[0].tokens.weight[x] + net[0].positions[:CONTEXT]
    mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT, dtype=torch.float64)
    for block in net[1:-1]:
        theirs = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        ours = {
            f"self_attn.in_proj_{key}": p.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)
            for key, p in block.attention.qkv.named_parameters()
        }
        for name, module in (
            ("self_attn.out_proj", block.attention.out), ("linear1", block.mlp.up), ("linear2", block.mlp.down),
            ("norm1", block.norm1), ("norm2", block.norm2),
        ):  # fmt: skip
            ours |= {f"{name}.{key}": p for key, p in module.named_parameters()}
        theirs.load_state_dict(ours)
        hidden = theirs(hidden, src_mask=mask)
    expected = functional.layer_norm(hidden, (WIDTH,), net[-1].norm.weight, net[-1].norm.bias) @ net[-1].logits.weight.T
    assert (net(x) - expected).abs().max() < NEAR


@pytest.mark.parametrize("tensor", [ways for ways in (1, 2, 3, 4) if SIZE % ways == 0])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_data_and_tensor_parallelism_with_clipping(tensor, sequence_parallel):
    losses, norms, whole = alone(clip=0.5)
    assert min(norms) > 0.5
    mesh = train.Mesh(COMM, data=SIZE // tensor, tensor=tensor)
    data, axis = mesh.data, mesh.tensor
    net, loss_fn = model(axis, sequence_parallel=sequence_parallel), ParallelCrossEntropy(VOCABULARY, axis)
    strategy = train.AllReduce(clip_norm=0.5, bucket_bytes=5000)
    net, opt = train.distribute(net, torch.optim.AdamW(net.parameters(), 0.01), strategy, mesh=mesh)
    bounds = train.tensor.Cut.even(0, BATCH, data.size)  # uneven on some meshes
    for step in range(STEPS):
        opt.zero_grad()
        x, y = (bounds.part(part, data.rank) for part in batch(step))
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        assert strategy.norm == pytest.approx(norms[step], abs=NEAR)
        mean = data.allreduce(loss.item() * len(x)) / BATCH
        assert mean == pytest.approx(losses[step], abs=NEAR)
    near(train.tensor.whole_state(net, axis), dict(whole.state_dict()))
    assert train.same_bits(net, data)


def test_states_are_cut_again():
    """From all ranks to one rank, and back to pairs of ranks, with the optimizer's state."""
    _, _, whole = alone(steps=4)
    net = model(COMM)
    opt = torch.optim.AdamW(net.parameters(), 0.01)
    _steps(net, opt, COMM, 0, 2)
    state = train.tensor.whole_state(net, COMM), train.tensor.whole_optimizer_state(opt, net, COMM)
    for axis in (COMM.Split(RANK), COMM.Split(RANK // 2)):
        net = model(axis, seed=3)
        opt = torch.optim.AdamW(net.parameters(), 0.01)
        train.tensor.load_whole_state(net, state[0], axis)
        train.tensor.load_whole_optimizer_state(opt, net, state[1], axis)
        _steps(net, opt, axis, 2, 4)
        near(train.tensor.whole_state(net, axis), dict(whole.state_dict()))
    model().load_state_dict(state[0])  # a model that is not cut
    with pytest.raises(ValueError, match="Missing key"):
        train.tensor.load_whole_state(net, {}, axis)


def _steps(net, opt, comm, first, last):
    loss_fn = ParallelCrossEntropy(VOCABULARY, comm)
    for step in range(first, last):
        opt.zero_grad()
        x, y = batch(step)
        loss_fn(net(x), y).backward()
        opt.step()


def test_shorter_samples_than_the_context_and_than_ranks():
    """With fewer positions than ranks, some ranks have none."""
    whole = model()
    net = model(COMM, sequence_parallel=True)
    for length in (1, 2, 5):
        x = X[:2, :length]
        part = train.tensor.Cut.even(-1, VOCABULARY, SIZE).part(whole(x), RANK)
        assert (net(x) - part).abs().max() < NEAR
    with pytest.raises(ValueError, match="12 positions are more than the context of 11"):
        net(torch.zeros(1, 12, dtype=torch.int64))


def test_the_generator_of_the_program_is_left_alone():
    torch.manual_seed(5)
    model(COMM)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


def test_ranks_that_are_threads_are_refused():
    def made(comm):
        with pytest.raises(ValueError, match="share torch's generator"):
            model(comm)

    train.threads.run(2, made)
