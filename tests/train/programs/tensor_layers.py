"""Cut layers on any number of ranks beside torch's own whole ones, in float64, and the bytes that they send.

``mpiexec -n 3 python -m pytest tests/train/programs/tensor_layers.py``
"""

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.nn import functional

import collectives
from collectives import train
from collectives.train.tensor import Cut, pairs
from collectives.train.torch import tensor
from collectives.train.traffic import Traffic, counted

torch.set_num_threads(1)
COMM = collectives.Communicator(MPI.COMM_WORLD)
TRAFFIC = Traffic()
COUNTED = counted(COMM, TRAFFIC)
RANK, SIZE = COMM.rank, COMM.size
NEAR = 1e-12
SAMPLES, POSITIONS, WIDTH, HEADS, VOCABULARY = 2, 7, 10, 5, 11
SEQUENCE = Cut.even(1, POSITIONS, SIZE)
ALONE = SIZE == 1


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(make, seed=1):
    """What `make` makes, with the same weights on all ranks."""
    torch.manual_seed(seed)
    return make()


def linear(inputs, outputs, bias=True):
    return seeded(lambda: torch.nn.Linear(inputs, outputs, bias=bias, dtype=torch.float64))


def leaf(x):
    return x.detach().clone().requires_grad_()


def near(found, expected, what=""):
    assert found.shape == expected.shape, what
    assert (found - expected).abs().max() < NEAR if found.numel() else True, what


def mine(whole, cut):
    return whole if cut is None else cut.part(whole, RANK)


def compare(layer, whole, x, incut=None, outcut=None, *, names=None, sequence=None, apply=None):
    """Output, input's gradient and parameters' gradients of `layer`, beside those of `whole`.

    `incut` and `outcut` say how input and output are cut; `names` maps parameters to those of `whole`.
    """
    a, b = leaf(x), leaf(mine(x, incut))
    expected = whole(a) if apply is None else apply(whole, a)
    found = layer(b) if sequence is None else layer(b, sequence)
    near(found, mine(expected, outcut), "output")
    weights = drawn(*expected.shape, seed=5)
    (expected * weights).sum().backward()
    (found * mine(weights, outcut)).sum().backward()
    near(b.grad, mine(a.grad, incut), "gradient of the input")
    cuts, wholes = train.tensor.cuts_of(layer), dict(whole.named_parameters())
    for name, p in layer.named_parameters():
        target = wholes[name if names is None else names[name]]
        near(p.grad, mine(target.grad, cuts.get(name)), f"gradient of {name}")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [None, "uneven"])
def test_linear_layers(bias, sizes):
    """Sizes other than even ones: the first rank has all that others can spare."""
    x = drawn(SAMPLES, POSITIONS, 6)
    given = None if sizes is None else [9 - SIZE + 1, *[1] * (SIZE - 1)]
    whole = linear(6, 9, bias)
    part = Cut(-1, tuple(given)) if given else Cut.even(-1, 9, SIZE)
    compare(tensor.ColumnParallelLinear(whole, COMM, sizes=given), whole, x, outcut=part)
    compare(tensor.ColumnParallelLinear(whole, COMM, sizes=given, gather_output=True), linear(6, 9, bias), x)
    x, whole = drawn(SAMPLES, POSITIONS, 9), linear(9, 4, bias)
    compare(tensor.RowParallelLinear(whole, COMM, sizes=given), whole, x, incut=part)
    compare(tensor.RowParallelLinear(whole, COMM, sizes=given, split_input=True), linear(9, 4, bias), x)


def test_linear_layers_of_cut_positions():
    x, whole = drawn(SAMPLES, POSITIONS, 6), linear(6, 9)
    layer = tensor.ColumnParallelLinear(whole, COMM)
    compare(layer, whole, x, incut=SEQUENCE, outcut=Cut.even(-1, 9, SIZE), sequence=SEQUENCE)
    x, whole = drawn(SAMPLES, POSITIONS, 9), linear(9, 4)
    layer = tensor.RowParallelLinear(whole, COMM)
    compare(layer, whole, x, incut=Cut.even(-1, 9, SIZE), outcut=SEQUENCE, sequence=SEQUENCE)


@pytest.mark.parametrize("sequence", [None, SEQUENCE])
def test_norms(sequence):
    x = drawn(SAMPLES, POSITIONS, WIDTH)
    for layer, whole in (
        (tensor.ParallelLayerNorm(WIDTH, COMM, dtype=torch.float64), torch.nn.LayerNorm(WIDTH, dtype=torch.float64)),
        (tensor.ParallelRMSNorm(WIDTH, COMM, dtype=torch.float64), torch.nn.RMSNorm(WIDTH, dtype=torch.float64)),
    ):
        with torch.no_grad():
            for (name, p), (_, q) in zip(layer.named_parameters(), whole.named_parameters(), strict=True):
                p += drawn(WIDTH, seed=len(name))
                q.copy_(p)
        compare(layer, whole, x, sequence, sequence, sequence=sequence)


@pytest.mark.parametrize("sequence", [None, SEQUENCE])
def test_embedding(sequence):
    tokens = torch.randint(VOCABULARY, (SAMPLES, POSITIONS), generator=torch.Generator().manual_seed(0))
    whole = seeded(lambda: torch.nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64))
    layer = tensor.ParallelEmbedding(whole, COMM)
    expected, found = whole(tokens), layer(tokens) if sequence is None else layer(tokens, sequence)
    near(found, mine(expected, sequence))
    weights = drawn(*expected.shape)
    (expected * weights).sum().backward()
    (found * mine(weights, sequence)).sum().backward()
    near(layer.weight.grad, layer.cuts["weight"].part(whole.weight.grad, RANK))
    for wrong in (-1, VOCABULARY):
        with pytest.raises(ValueError, match=f"the vocabulary has {VOCABULARY}"):
            layer(torch.tensor([[0, wrong]]))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_cross_entropy(scale):
    """Of large logits, too, whose exponentials are out of range."""
    logits = scale * drawn(SAMPLES, POSITIONS, VOCABULARY)
    targets = torch.randint(VOCABULARY, (SAMPLES, POSITIONS), generator=torch.Generator().manual_seed(3))
    loss_fn, cut = tensor.ParallelCrossEntropy(VOCABULARY, COUNTED), Cut.even(-1, VOCABULARY, SIZE)
    a, b = leaf(logits), leaf(cut.part(logits, RANK))
    expected = functional.cross_entropy(a.flatten(0, 1), targets.flatten())
    TRAFFIC.bytes = 0
    found = loss_fn(b, targets)
    assert TRAFFIC.bytes == (0 if ALONE else 3 * 8 * targets.numel())
    assert abs(found - expected) < NEAR * scale
    (2 * expected).backward()
    (2 * found).backward()
    near(b.grad, cut.part(a.grad, RANK))
    with pytest.raises(ValueError, match="targets run from 0 to 11, the vocabulary has 11"):
        loss_fn(b[0, :2], torch.tensor([0, VOCABULARY]))
    with pytest.raises(ValueError, match=r"do not fit targets \(3,\)"):
        loss_fn(b[0, :2], torch.tensor([0, 1, 2]))


def test_cross_entropy_of_16_bits():
    logits = drawn(SAMPLES, VOCABULARY).bfloat16()
    cut = Cut.even(-1, VOCABULARY, SIZE)
    part, targets = leaf(cut.part(logits, RANK)), torch.tensor([3, 10])
    loss = tensor.ParallelCrossEntropy(VOCABULARY, COMM)(part, targets)
    loss.backward()
    assert (loss - functional.cross_entropy(logits.float(), targets)).abs() < 1e-6
    assert part.grad.dtype == torch.bfloat16


def attend(whole, x):
    """torch's own attention, with a causal mask."""
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return whole(x, x, x, attn_mask=later, need_weights=False)[0]


@pytest.mark.parametrize("sequence", [None, SEQUENCE])
def test_attention(sequence):
    """Beside torch.nn.MultiheadAttention, whose rows are (3, heads, size); ours are (heads, 3, size)."""
    layer = seeded(lambda: tensor.ParallelAttention(WIDTH, HEADS, COMM, dtype=torch.float64))
    whole = seeded(lambda: torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64))
    state = {name: torch.from_numpy(np.asarray(v)) for name, v in train.tensor.whole_state(layer, COMM).items()}

    def by_kind(rows):
        return rows.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)

    def by_head(rows):
        return rows.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten(0, 2)

    with torch.no_grad():
        whole.in_proj_weight.copy_(by_kind(state["qkv.weight"]))
        whole.in_proj_bias.copy_(by_kind(state["qkv.bias"]))
        whole.out_proj.weight.copy_(state["out.weight"])
        whole.out_proj.bias.copy_(state["out.bias"])
    a = leaf(drawn(SAMPLES, POSITIONS, WIDTH))
    b = leaf(mine(a, sequence))
    expected, found = attend(whole, a), layer(b) if sequence is None else layer(b, sequence)
    near(found, mine(expected, sequence))
    expected.square().sum().backward()
    found.square().sum().backward()
    near(b.grad, mine(a.grad, sequence))
    cuts = train.tensor.cuts_of(layer)
    near(layer.qkv.weight.grad, cuts["qkv.weight"].part(by_head(whole.in_proj_weight.grad), RANK))
    near(layer.qkv.bias.grad, cuts["qkv.bias"].part(by_head(whole.in_proj_bias.grad), RANK))
    near(layer.out.weight.grad, cuts["out.weight"].part(whole.out_proj.weight.grad, RANK))
    near(layer.out.bias.grad, whole.out_proj.bias.grad)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dropout_draws_the_mask_of_the_whole(axis):
    shape, cut = (4, 9, 6), Cut.even(axis, (4, 9, 6)[axis], SIZE)
    whole = seeded(lambda: tensor.ParallelDropout(0.4, axis=axis)(torch.ones(shape)))
    layer = tensor.ParallelDropout(0.4, COMM, axis=axis)
    same = seeded(lambda: layer(torch.ones(shape)))
    assert torch.equal(same, whole)
    found = seeded(lambda: layer(cut.part(torch.ones(shape), RANK), cut))
    assert torch.equal(found, cut.part(whole, RANK))
    after = seeded(lambda: (layer(torch.ones(shape)), layer(torch.ones(shape)))[1])
    assert not torch.equal(after, whole)
    assert torch.equal(layer.eval()(found), found)


def test_dropout_keeps_the_mean():
    """Of 10^6 elements the mean differs from 1 by about 0.001, a standard deviation of sqrt(p / (1 - p) / 10^6)."""
    found = seeded(lambda: tensor.ParallelDropout(0.5, COMM, axis=0)(torch.ones(1000, 1000)))
    assert abs(float(found.mean()) - 1) < 0.005
    assert sorted(found.unique().tolist()) == [0, 2]
    with pytest.raises(ValueError, match="p must be at least 0"):
        tensor.ParallelDropout(1.0, axis=0)


def sent(function):
    TRAFFIC.bytes = 0
    made = function()
    return made, TRAFFIC.bytes


@pytest.mark.parametrize("sequence", [None, SEQUENCE])
def test_bytes_that_layers_send(sequence):
    """A block gives two all-reduces each way (Shoeybi et al. 2019, fig. 4); cut along the positions, an all-gather of a
    part and a reduce-scatter in place of each (Korthikanti et al. 2022, fig. 5), and the gradients of biases."""
    layers = (
        tensor.ParallelMLP(WIDTH, 12, COUNTED, dtype=torch.float64),
        tensor.ParallelAttention(WIDTH, HEADS, COUNTED, dtype=torch.float64),
    )
    whole = 8 * SAMPLES * POSITIONS * WIDTH
    for layer in layers:
        x = leaf(mine(drawn(SAMPLES, POSITIONS, WIDTH), sequence))
        y, forward = sent(lambda layer=layer, x=x: layer(x, sequence))
        _, backward = sent(lambda y=y: y.sum().backward())
        part = x.numel() * 8
        expected = (whole, whole) if sequence is None else (part + whole, part + whole + 8 * WIDTH)
        assert (forward, backward) == ((0, 0) if ALONE else expected)


def test_bytes_that_numpy_layers_send():
    whole = train.Linear(6, 9, rng=np.random.default_rng(0), dtype=np.float64)
    x, rows = np.ones((4, 6)), 8 * 4
    column = train.tensor.ColumnParallelLinear(whole, COUNTED, gather_output=True)
    (y, saved), forward = sent(lambda: column.forward(x))
    _, backward = sent(lambda: column.backward(saved, y, True))
    assert (forward, backward) == (rows * Cut.even(0, 9, SIZE).sizes[RANK], rows * 6)
    assert sent(lambda: column.backward(saved, y, False))[1] == 0
    row = train.tensor.RowParallelLinear(whole, COUNTED, split_input=True)
    (y, saved), forward = sent(lambda: row.forward(x))
    _, backward = sent(lambda: row.backward(saved, y, True))
    assert (forward, backward) == (rows * 9, rows * Cut.even(0, 6, SIZE).sizes[RANK])


def test_functions_of_autograd_say_that_they_have_one_derivative():
    x = leaf(drawn(3))
    y = tensor.paired(pairs.REDUCE, x * x, COMM)
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    if ALONE:
        grad.sum().backward()
    else:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


def test_recomputation_gives_the_same():
    """Collectives and masks of a forward pass that runs again in the backward pass."""
    layer = seeded(lambda: tensor.ParallelAttention(WIDTH, HEADS, COMM, dropout=0.3, dtype=torch.float64))
    grads = []
    for again in (False, True):
        layer.zero_grad()
        x = leaf(drawn(SAMPLES, POSITIONS, WIDTH))
        torch.manual_seed(4)
        y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if again else layer(x)
        y.square().sum().backward()
        grads.append([x.grad, *(p.grad.clone() for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.skipif(ALONE, reason="one rank can have everything")
def test_bad_layers_are_errors_on_all_ranks():
    few = SIZE - 1
    cases = {
        f"ParallelAttention: {few} heads over {SIZE} ranks": lambda: tensor.ParallelAttention(WIDTH * few, few, COMM),
        "3 heads do not divide a width of 10": lambda: tensor.ParallelAttention(10, 3, COMM.Split(RANK)),
        f"ParallelEmbedding: {few} rows": lambda: tensor.ParallelEmbedding(torch.nn.Embedding(few, 3), COMM),
        f"ParallelCrossEntropy: {few} entries": lambda: tensor.ParallelCrossEntropy(few, COMM),
        "takes no padding_idx": lambda: tensor.ParallelEmbedding(torch.nn.Embedding(9, 3, padding_idx=0), COMM),
        "rank 0": lambda: tensor.ColumnParallelLinear(torch.nn.Linear(3, 9 + (RANK == 1)), COMM),
        "inputs is|ranks differ": lambda: tensor.RowParallelLinear(torch.nn.Linear(9 + RANK, 3), COMM),
        "are no cut of 9 inputs": lambda: tensor.RowParallelLinear(torch.nn.Linear(9, 3), COMM, sizes=[9] * SIZE),
    }
    for words, make in cases.items():
        with pytest.raises(ValueError, match=words):
            make()
        assert COMM.allreduce(1) == SIZE  # no rank is left in another call


def test_frozen_layers_stay_frozen():
    for trained in (False, True):
        linear, embedding = torch.nn.Linear(8, 8), torch.nn.Embedding(8, 8)
        for layer in (linear, embedding):
            layer.requires_grad_(trained)
        cut = tensor.ColumnParallelLinear(linear, COMM), tensor.RowParallelLinear(linear, COMM)
        for made in (*cut, tensor.ParallelEmbedding(embedding, COMM)):
            assert {p.requires_grad for p in made.parameters()} == {trained}
