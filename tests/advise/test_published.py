"""The advice on published systems: what they chose fits, and is the best in the model or nearly so.

Each is asked about with what it had: its model, ranks, links, batch, schedule, recomputation and stages of ZeRO.
"""

import dataclasses
import re

import pytest
from jobs import ROOT

from collectives.advise.machine import MACHINES, Machine
from collectives.advise.model import Precision, Shape, transformer
from collectives.advise.plan import Choices, Mesh
from collectives.advise.ranking import advise

PAGE = (ROOT / "docs/advise.md").read_text()
A100 = MACHINES["dgx-a100"]
MEGATRON = Precision(2, 4, 12)  # gradients are added up in float32
CHOICES = Choices(schedules=("1f1b",), recompute=("block",), zero=(0, 1), sequence=False)
INTERLEAVED = dataclasses.replace(CHOICES, schedules=("interleaved_1f1b", "1f1b"), zero=(0,))


@dataclasses.dataclass(frozen=True)
class System:
    """What was published; ``nbytes`` is the memory of a rank."""

    name: str
    shape: Shape
    ranks: int
    batch: int
    mesh: Mesh
    choices: Choices = CHOICES
    precision: Precision = MEGATRON
    tied: bool = True
    nbytes: float = 80e9
    port: float = 200e9

    def advice(self, choices, top=1):
        machine = Machine(**{**A100, "ranks": self.ranks, "memory": self.nbytes, "beta": self.port})
        return advise(transformer(self.shape, self.precision, tied=self.tied), machine, self.batch, choices, top)

    def chosen(self, **more):
        """The advice if the mesh is the published one."""
        mesh = {axis: getattr(self.mesh, axis) for axis in ("data", "pipeline", "tensor")}
        return self.advice(dataclasses.replace(self.choices, **mesh, **more)).ranked[0]


SYSTEMS = [
    # Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", table 1.
    System("Megatron-LM 146B", Shape(80, 12288, 96), 1536, 2304, Mesh(24, 8, 8), INTERLEAVED),
    System("Megatron-LM 1T", Shape(128, 25600, 160), 3072, 3072, Mesh(6, 64, 8), INTERLEAVED),
    # Smith et al. 2022, "Using DeepSpeed and Megatron to Train Megatron-Turing NLG 530B", sec. 2.
    System("MT-NLG 530B", Shape(105, 20480, 128, vocabulary=50304), 2240, 1920, Mesh(8, 35, 8)),
    # BigScience 2022, "BLOOM", sec. 3.4, and the job script tr11-176B-ml.slurm; four links of 100 Gbit/s a host.
    System("BLOOM 176B", Shape(70, 14336, 112, vocabulary=250880), 384, 2048, Mesh(8, 12, 4), port=50e9),
    # Black et al. 2022, "GPT-NeoX-20B", sec. 2, and configs/20B.yml of gpt-neox; four ports of 200 Gbit/s a host.
    System(
        "GPT-NeoX-20B", Shape(44, 6144, 64, vocabulary=50432), 96, 1536, Mesh(12, 4, 2), precision=Precision(),
        tied=False, nbytes=40e9, port=100e9,
    ),
    # Zeng et al. 2023, "GLM-130B", sec. 2.3.
    System(
        "GLM-130B", Shape(70, 12288, 96, vocabulary=150528), 768, 4224, Mesh(24, 8, 4), precision=Precision(),
        nbytes=40e9,
    ),
]  # fmt: skip
MOST = 1.05  # times the best


@pytest.mark.parametrize(
    "system",
    [pytest.param(s, id=s.name, marks=[pytest.mark.slow] if s.ranks > 2000 else []) for s in SYSTEMS],
)
def test_the_choice_is_the_best_or_nearly(system):
    chosen, best = system.chosen(), system.advice(system.choices).ranked[0]
    assert chosen.memory.total <= system.nbytes
    factor = chosen.step.seconds / best.step.seconds
    assert 0.995 <= factor <= MOST
    row = re.search(rf"^\| {system.name} \|.*$", PAGE, re.MULTILINE)[0]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == [str(system.ranks), system.mesh.form, best.plan.mesh.form]
    assert float(cells[4]) == pytest.approx(factor, abs=0.0051)
    assert cells[5] == f"{chosen.memory.total / 1e9:.0f} GB"


def test_times_of_mt_nlg():
    """Published are 60.1, 50.2 and 44.4 s on 280, 350 and 420 hosts; here with the ranks' rate as it is by default."""
    system = next(s for s in SYSTEMS if s.name == "MT-NLG 530B")
    for hosts, seconds in ((280, 60.1), (350, 50.2), (420, 44.4)):
        ranks = hosts * 8
        one = dataclasses.replace(system, ranks=ranks, mesh=Mesh(ranks // 280, 35, 8)).chosen()
        assert one.step.seconds == pytest.approx(seconds, rel=0.1), hosts


def test_why_megatron_keeps_tensor_ranks_on_a_host():
    """Narayanan et al. 2021, sec. 5.4.1: with 16 tensor ranks all-reduces cross hosts, and cost more than pipelines."""
    system = SYSTEMS[0]
    inside = system.chosen()
    outside = dataclasses.replace(system, mesh=Mesh(24, 4, 16)).chosen()
    assert outside.step.tensor > 3 * inside.step.tensor
    assert outside.step.seconds > 1.1 * inside.step.seconds


def test_why_large_models_are_computed_again():
    """Without it the published mesh of BLOOM does not fit."""
    system = SYSTEMS[3]
    with pytest.raises(ValueError, match="nothing fits 80 GB"):
        system.chosen(recompute=("none",), micro_batch=2)
