"""What a model is: parameters, operations and activations, beside the papers' formulas and numbers by hand."""

import pytest

from collectives.advise.model import Block, Model, Precision, Shape, perceptron, shape_of, transformer
from collectives.advise.stages import parts

GPT3 = Shape(96, 12288, 96)


def kept_of_a_layer(shape, tensor, recompute="none", sequence=False):
    """Bytes that a rank keeps of a sample in a layer: those of a whole model less the first and the last block."""
    layers = Model("", transformer(shape).blocks[1:-1])
    (part,) = parts(layers, 1, tensor, recompute, sequence)
    return part.kept / shape.layers


def test_parameters_are_those_of_narayanan_2021_eq_2():
    layers, h, s, v = 96, 12288, 2048, 51200
    formula = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    assert transformer(GPT3).parameters == pytest.approx(formula + 2 * h)
    assert transformer(GPT3).parameters == pytest.approx(174.6e9, rel=1e-3)  # their table 2


@pytest.mark.parametrize(
    ("layers", "width", "heads", "billions"),
    [(24, 2304, 24, 1.7), (30, 3072, 32, 3.6), (36, 4096, 32, 7.5), (40, 6144, 48, 18.4), (48, 8192, 64, 39.1),
     (60, 10240, 80, 76.1), (80, 12288, 96, 145.6), (96, 16384, 128, 310.1), (105, 20480, 128, 529.6),
     (128, 25600, 160, 1008.0)],
)  # fmt: skip
def test_parameters_are_those_of_narayanan_2021_table_1(layers, width, heads, billions):
    assert transformer(Shape(layers, width, heads)).parameters / 1e9 == pytest.approx(billions, abs=0.06)


def test_operations_are_those_of_narayanan_2021_eq_3():
    layers, h, s, v = 96, 12288, 2048, 51200
    whole = 96 * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))  # with layers computed twice
    model = transformer(GPT3)
    head = model.blocks[-1].flops
    assert 4 * (model.flops - head) + 3 * head == pytest.approx(whole)


@pytest.mark.parametrize(
    ("tensor", "recompute", "sequence", "formula"),
    [
        (1, "none", False, lambda s, h, a, t: s * h * (34 + 5 * a * s / h)),
        (8, "none", False, lambda s, h, a, t: s * h * (10 + 24 / t + 5 * a * s / (h * t))),
        (8, "none", True, lambda s, h, a, t: s * h / t * (34 + 5 * a * s / h)),
        (8, "attention", False, lambda s, h, a, t: s * h * (10 + 24 / t)),
        (8, "attention", True, lambda s, h, a, t: s * h / t * 34),
        (8, "block", False, lambda s, h, a, t: 2 * s * h),
    ],
)
def test_activations_are_those_of_korthikanti_2022_table_2(tensor, recompute, sequence, formula):
    assert kept_of_a_layer(GPT3, tensor, recompute, sequence) == pytest.approx(formula(2048, 12288, 96, tensor))


def test_activations_of_gpt3_by_hand():
    assert kept_of_a_layer(GPT3, 8) == 2048 * 12288 * 23  # 10 + 3 + 10


def test_float32_activations():
    """Masks of dropout stay bytes: 4 e + 2 whole, 12 e cut, and a s (2 e + 1) of the attention."""
    shape = Shape(1, 64, 4, sequence=16, vocabulary=10)
    layer = transformer(shape, element=4).blocks[1]
    assert (layer.kept_whole, layer.kept_cut, layer.attention) == (16 * 64 * 18, 16 * 64 * 48, 4 * 16 * 16 * 9)


def test_a_stage_with_both_ends_has_tied_words_once():
    model = transformer(Shape(2, 64, 4, sequence=16, vocabulary=100))
    assert parts(model, 1, 1, "none", False)[0].parameters == model.parameters
    assert sum(p.parameters for p in parts(model, 2, 1, "none", False)) == model.parameters + 6400
    untied = transformer(Shape(2, 64, 4, sequence=16, vocabulary=100), tied=False)
    assert untied.parameters == model.parameters + 6400


def test_perceptron_by_hand():
    model = perceptron(3, width=10, hidden=4)
    assert model.parameters == 3 * (10 * 4 + 4 + 4 * 10 + 10)
    assert model.flops == 3 * 2 * 80
    (part,) = parts(model, 1, 2, "none", False)
    assert part.kept == 3 * (10 * 4 + 2 * 4)
    assert part.parameters == 3 * (20 + 2 + 20 + 10)
    assert (part.forward_calls, part.backward_calls, part.border) == (3, 2, 0)


def test_stages_are_even_in_operations():
    blocks = tuple(Block("b", cut=1, flops=flops) for flops in (1, 1, 1, 3))
    assert [part.flops for part in parts(Model("m", blocks), 2, 1, "none", False)] == [3, 3]


@pytest.mark.parametrize(
    ("parameters", "layers", "width", "heads"),
    [(175e9, 96, 12288, 96), (7e9, 32, 4096, 32), (1e12, 180, 21504, 168), (350e6, 10, 1536, 24)],
)
def test_a_form_of_so_many_parameters(parameters, layers, width, heads):
    shape = shape_of(parameters)
    assert (shape.layers, shape.width, shape.heads) == (layers, width, heads)
    assert transformer(shape).parameters == pytest.approx(parameters, rel=0.06)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Shape(0, 8, 2), "layers: expected at least 1, not 0"),
        (lambda: Shape(1, 10, 3), "3 do not divide a width of 10"),
        (lambda: shape_of(1000), "1000 parameters are less than one layer"),
        (lambda: shape_of(float("inf")), "give --layers"),
        (lambda: perceptron(1, 0, 3), "at least one block"),
    ],
)
def test_bad_models(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_precision_is_that_of_zero():
    assert sum(vars(Precision()).values()) == 16  # Rajbhandari et al. 2020, sec. 3.1: 2 + 2 + 12
