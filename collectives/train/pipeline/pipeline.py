"""``Pipeline``: a model in stages on the ranks of a communicator, trained by a schedule."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from ..agree import communicator, same_as_rank_0, together
from ..data.loader import Loader
from ..deaths import explained
from ..flat.model import Handle, Model
from ..loading import check_array, check_mapping
from ..mesh import Mesh
from ..models.nn import Array
from ..tensors import as_numpy, is_tensor
from .activations import Activations
from .batches import MicroBatches
from .executor import Executor, LossFunction
from .feeds import BatchFeed, StreamFeed
from .instructions import Instruction, PipelineSchedule, check_step
from .layout import Layout
from .lowering import lower
from .model import StagesModel
from .placement import Placement
from .proof import verify
from .registry import find
from .report import Report, StepLoss
from .stage import Stage
from .tied import Tied
from .transfers import Transfers
from .watch import Watch, check_prints, differ

__all__ = ["Pipeline"]


class Pipeline:
    """A model cut into stages on the ranks of `comm` (default: the world), for example of ``mesh.pipeline``.

    ``loss = pipe.step(x, y, loss_fn)`` does what ``loss = loss_fn(net(x), y); loss.backward()`` does in one process::

        pipe = train.Pipeline(net, mesh.pipeline, schedule="1f1b", micro_batches=8)
        opt = train.SGD(pipe.parameters(), 0.1)
        pipe, opt = train.distribute(pipe, opt, train.AllReduce(clip_norm=1.0), mesh=mesh)
        for x, y in loader:
            opt.zero_grad()
            loss = pipe.step(x, y, loss_fn)
            opt.step()

    * `net`: a `Sequential`, a ``torch.nn.Sequential`` or a `Graph`, the same on all ranks. A rank uses its own blocks.
    * `schedule`: a name (gpipe, 1f1b, interleaved_1f1b, zero_bubble, pipedream, pipedream_2bw) or a `PipelineSchedule`.
      It is proved for this model before it runs. The last two are without a flush: see `stream`.
    * `micro_batches`: parts of a batch, which differ by at most one sample; those without samples are left out.
    * `replicas`: how many ranks have each stage, one after the other (default: 1). They share its micro-batches in
      turn, and add up their gradients. A cost of a stage is divided by their number.
    * `cut`: the first block of each virtual stage but the first one; or what is balanced: "parameters" (default),
      "flops" or "time" on an input `sample`. The most expensive stage is then as cheap as it can be, and as few
      virtual stages as possible have no parameters.
    * `route`: "relay" (default) or "direct": how a value gets to a stage that is not the next one (see `Wiring`).
    * `recompute`: keep only what comes from other stages, and repeat forward passes (Chen et al. 2016).

    Gradients are means over the samples of the whole batch (of this rank's in ``mesh.data``), as in one process. A
    parameter that blocks on several ranks share has a copy on each, and their gradients are added up.

    Methods that are collective over `comm` say so; the constructor is. Raises on all ranks: TypeError for what is no
    such model, ValueError for arguments that make no pipeline or differ between ranks, ScheduleError (a ValueError) for
    a schedule that would not end.
    """

    def __init__(
        self, net: Any, comm: Any = None, *, schedule: str | PipelineSchedule = "1f1b", micro_batches: int = 1,
        replicas: Sequence[int] | None = None, cut: Any = "parameters", sample: Any = None, route: str = "relay",
        recompute: bool = False,
    ) -> None:  # fmt: skip
        self.comm = comm = communicator(comm)
        self.micro_batches, self.recompute = micro_batches, recompute
        self.schedule = together(comm, lambda: find(schedule)() if isinstance(schedule, str) else schedule)
        placement = together(comm, lambda: Placement(int(comm.rank), int(comm.size), replicas))
        self._placement = placement
        layout = together(comm, lambda: Layout(net, placement, self.schedule.chunks, cut, sample, route))
        settings = {"schedule": self.schedule.name, "chunks": self.schedule.chunks, "micro_batches": micro_batches}
        settings |= {"recompute": recompute, "replicas": placement.replicas}
        settings["cut"] = cut if isinstance(cut, str) else layout.bounds[1:-1]
        same_as_rank_0(comm, settings | layout.describe(), "Pipeline")
        bounds = comm.bcast(layout.bounds, root=0)  # measured times differ
        self._layout = layout = layout.cut_at(bounds)
        together(comm, lambda: self._check(layout))
        mine = [placement.virtual(chunk) for chunk in range(self.schedule.chunks)]
        self._activations = Activations()
        self.stages: list[Stage] = [layout.stage(virtual, self._activations, recompute) for virtual in mine]
        self._reads = {value for stage in self.stages for value in stage.inputs}
        self._named = {name: p for stage in self.stages for name, p in stage.parameters.items()}
        self.net = layout.model(mine, self._named)
        self._uses = {name: sum(name in s.parameters for s in self.stages) for name in self._named}
        self._watch = Watch(comm, str(placement))
        self._tied = Tied(comm, layout.framework, self._named, layout.holders(), self._watch)
        self._executor = Executor(
            layout.framework, self.stages, layout.wiring,
            Transfers(layout.wiring.edges, placement, self._watch), placement, self._gradient_ready,
        )  # fmt: skip
        self._programs: dict[int, list[Instruction]] = {}  # the last one, which most steps run again
        self._model: StagesModel | None = None
        self._mesh: Mesh | None = None
        self._failed, self._freed = "", False  # the error that ended a step
        self._seconds, self._runs, self._run_batches = 0.0, 0, 0

    def _check(self, layout: Layout) -> None:
        """Raise ValueError unless the schedule serves this model and its micro-batches. A stream is proved for four
        steps more than the versions of the weights that it needs."""
        stages, count = self._placement.stages, self.micro_batches
        layout.check()
        if self.schedule.flushless:
            if layout.is_tied():
                raise ValueError(f"ranks of {self.schedule.name} step at different times, and cannot share parameters")
            check_step(self.schedule, stages, count)
            count *= stages + 4
        verify(self.schedule, stages, count, edges=layout.wiring.edges)

    def parameters(self) -> list[Any]:
        """The trainable parameters of this rank's stages, for its optimizer."""
        return list(self._named.values())

    def named_parameters(self) -> list[tuple[str, Any]]:
        """The same with their names in the whole model, ``<number of the block>.<name>``."""
        return list(self._named.items())

    def adapted(self, opt: Any) -> tuple[Model, Handle]:
        """`Model` and `Handle` of this rank's stages, for `distribute`. TypeError or ValueError as there."""
        inner, handle = self._layout.framework.adapt(self.net, opt)
        self._model = StagesModel(inner, self._tied.copies)
        return self._model, handle

    def join(self, mesh: Mesh) -> None:
        """Take the mesh of which ``comm`` is an axis: of a rank that has died all its ranks learn. Collective over the
        mesh; `distribute` calls this. ValueError if its pipelines have other stages than that of rank 0."""
        same_as_rank_0(mesh.comm, {"first blocks of the stages": self._layout.bounds}, "Pipeline")
        self._mesh = mesh
        self._watch.join(communicator(mesh.comm))

    def arrive(self, wait: bool) -> None:
        """Raise PeerFailure, which names it, if a pipeline of the mesh has failed; with `wait`, wait for all ranks.

        The optimizer calls this at the begin of a step: a pipeline that has failed does not come to the collectives of
        its strategy. Collective over the mesh. RuntimeError if this pipeline cannot be used any more.
        """
        with self._telling():
            self._watch.arrive(wait and not self.schedule.flushless)  # whose stages step at different times

    def step(self, x: Any, y: Any, loss_fn: LossFunction, *, scale: float = 1.0) -> StepLoss:
        """Run the passes of a batch, and add its gradient to the parameters'. Returns the mean loss. Collective.

        `x` and `y` are the whole batch, the same on all ranks of the pipeline: x of shape (n, ...), or a tuple of all
        inputs of the model; y with n rows. ``loss_fn(output, y)`` is the mean over a micro-batch. `scale` multiplies
        the gradient, as a loss scale does.

        Raises ValueError for inputs of different lengths, for a schedule without a flush, and if the ranks' labels, or
        the inputs that they read, differ in some of up to 4096 elements; what a stage raises on its rank, and
        PeerFailure, which names it, on the others and, when they step, on the other pipelines of a mesh. After an error
        neither the pipeline nor its mesh can be used any more.
        """
        if self.schedule.flushless:
            raise ValueError(f"{self.schedule.name} has many steps in a stream of batches; use pipe.stream")
        with self._telling():
            batch = self._cut(x, y)
            self._watch.begin("samples", batch.samples, batch.prints(self._reads))
            feed = BatchFeed(batch)
            return self._run(self.micro_batches, feed, loss_fn, scale, lambda: ([feed.loss], [batch.samples], [()]))[0]

    def stream(self, batches: Iterable[tuple[Any, Any]], loss_fn: LossFunction, opt: Any) -> list[StepLoss]:
        """Train on batches ``(x, y)`` without a flush: one step of `opt` for each. Returns their losses. Collective.

        `batches` has a length, the same on all ranks. Of a `Loader` it is what is left of its epoch, which then ends.
        Each is cut into `micro_batches`, whose number is 1 for "pipedream" and the schedule's ``accumulate`` for
        "pipedream_2bw". Gradients come from weights that are some steps old, see the schedule. Raises ValueError for a
        schedule with a flush, for a batch with fewer samples than micro-batches, if there are not as many batches as
        the length says, and as `step`.
        """
        if not self.schedule.flushless:
            raise ValueError(f"{self.schedule.name} has one step for each batch; use pipe.step")
        lengths: list[int] = []
        prints: list[Sequence[int]] = []

        def cut() -> Iterable[MicroBatches]:
            for x, y in batches:
                batch = self._cut(x, y)
                lengths.append(batch.samples)
                prints.append(batch.prints(self._reads))
                yield batch

        def step() -> None:
            self._end_gradients()
            opt.step()
            opt.zero_grad()
            self._layout.framework.stepped()

        if not isinstance(batches, Sized):
            raise TypeError(f"batches of a stream need a length; a {type(batches).__name__} has none")
        total = len(batches) - (batches.step if isinstance(batches, Loader) else 0)
        with self._telling():
            self._watch.begin("batches", total)
            self._watch.compare()
            feed = StreamFeed(cut(), total, self.micro_batches, step, self._begin_gradients)
            losses: list[StepLoss] = []
            if total:
                count = total * self.micro_batches
                losses = self._run(count, feed, loss_fn, 1.0, lambda: (feed.losses, lengths, prints))
            feed.end()
            return losses

    def _cut(self, x: Any, y: Any) -> MicroBatches:
        """A batch in micro-batches. ValueError unless it has the inputs of the model, and a label for each sample."""
        given = len(x) if isinstance(x, tuple | list) else 1
        if given != self._layout.inputs:
            raise ValueError(f"the model has {self._layout.inputs} inputs, this batch a {type(x).__name__} of {given}")
        return MicroBatches(x, y, self.micro_batches, self._layout.framework.part)

    def _program(self, micro_batches: int) -> list[Instruction]:
        stage, stages = self._placement.stage, self._placement.stages
        if micro_batches not in self._programs:
            self.schedule.check(stages, micro_batches)
            computations = self.schedule.instructions(stage, stages, micro_batches)
            lowered = lower(computations, stage, stages, self._layout.wiring.edges)
            self._programs = {micro_batches: self._placement.own(lowered)}
        return self._programs[micro_batches]

    def _run(
        self, count: int, feed: Any, loss_fn: LossFunction, scale: float,
        found: Callable[[], tuple[list[float], list[int], Sequence[Sequence[int]]]],
    ) -> list[StepLoss]:  # fmt: skip
        begin = time.perf_counter()
        program = self._program(count)
        self._begin_gradients(feed.place(0)[0].samples)
        self._executor.run(program, feed, loss_fn, scale)
        losses, lengths, prints = found()
        if not self.schedule.flushless:
            self._end_gradients()
        values = self._agreed(losses or [0.0] * len(lengths), lengths, prints)
        self._seconds += time.perf_counter() - begin
        self._runs, self._run_batches = self._runs + 1, self._run_batches + count
        return [StepLoss(value, length) for value, length in zip(values, lengths, strict=True)]

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Tell the other ranks of an error in this context. Messages may be left on their way: there is no other step
        after it."""
        if self._freed:
            raise RuntimeError("this pipeline was freed")
        if self._failed:
            raise RuntimeError(f"this pipeline failed in an earlier step ({self._failed}): make a new one")
        try:
            yield
        except BaseException as error:
            cause = self._watch.cause(error)
            failure = explained(self.comm if self._mesh is None else self._mesh.comm, cause)
            self._failed = f"{type(failure).__name__}: {failure}"
            self._executor.abandon()
            self._watch.tell(failure)
            if failure is error:
                raise
            if self._mesh is not None and failure is not cause:
                self._mesh.give_up()
            raise failure from error

    def _agreed(self, losses: Sequence[float], lengths: Sequence[int], prints: Sequence[Sequence[int]]) -> list[float]:
        """The losses, which the last stage knows. ValueError unless all ranks had the same batches. Collective."""
        found = self._watch.settle(np.array([losses, lengths, *zip(*prints, strict=True)]))
        if (found[:, 1] != lengths).any():
            raise ValueError(differ("samples", [list(map(int, of_rank)) for of_rank in found[:, 1]]))
        for batch in range(len(lengths)):
            check_prints(found[:, 2:, batch])
        return [float(value) for value in found[:, 0].sum(axis=0)]

    def _begin_gradients(self, samples: int) -> None:
        """Prepare for the backward passes of a batch of so many samples."""
        self._missing = dict(self._uses)
        self._tied.begin()
        if self._model is not None:
            self._model.samples = samples

    def _gradient_ready(self, chunk: int, name: str) -> None:
        """Hand a gradient to the strategy, unless another chunk or stage still adds to it."""
        self._missing[name] -= 1
        if not self._missing[name] and name not in self._tied.copies:
            self._hand_over(name)

    def _hand_over(self, name: str) -> None:
        del self._missing[name]
        frozen = not getattr(self._named[name], "requires_grad", True)  # torch's, by the program
        if self._model is not None and not frozen:
            self._model.ready(name)

    def _end_gradients(self) -> None:
        """Add up the gradients of tied parameters, and hand over what is left."""
        self._tied.reduce()
        for name in reversed(list(self._missing)):
            self._hand_over(name)
        if self._model is not None:
            self._model.end()

    def report(self) -> Report:
        """What was measured since the last report, on all stages. Collective."""
        counts = (self._activations.peak_bytes, self._activations.peak_count)
        mine = (self._executor.busy, self._seconds, *counts, self._executor.versions_held)
        busy, seconds, nbytes, held, versions = map(list, zip(*self.comm.allgather(mine), strict=True))
        size, stages, longest = int(self.comm.size), self._placement.stages, max(seconds)
        count = round(self._run_batches / self._runs) if self._runs else self.micro_batches  # a stream has more
        promised = [self.schedule.activations(stage, stages, count) for stage in range(stages)]
        made = Report(
            self.schedule.name, 1 - sum(busy) / (size * longest) if longest else 0.0,
            float(self.schedule.bubble(stages, count)), busy, longest, nbytes, held,
            [promised[self._placement.stage_of(rank)] for rank in range(size)], versions,
        )  # fmt: skip
        self._executor.busy, self._seconds, self._runs, self._run_batches = 0.0, 0.0, 0, 0
        self._activations.reset()
        return made

    def state_dict(self) -> dict[str, Array]:
        """Copies of this rank's parameters by their names in the whole model, and of other arrays that blocks keep."""
        return {name: array.copy() for name, array in self._layout.framework.state(self.net).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's arrays from a state of the whole model, of any cut, or of this one.

        If that raises an error, nothing has changed: TypeError for what is no mapping, or for a sparse tensor;
        ValueError for an array that is missing or has another shape.
        """
        check_mapping("Pipeline", state)
        own = self._layout.framework.state(self.net)
        for name, array in own.items():
            if name not in state:
                raise ValueError(f"the state has no parameter {name} of shape {array.shape}")
            check_array(f"parameter {name}", state[name], array.shape)
        values = {name: as_numpy(state[name]) if is_tensor(state[name]) else state[name] for name in own}
        for name, array in own.items():
            array[...] = values[name]
        if self._model is not None:
            self._model.loaded()

    def free(self) -> None:
        """Free the pipeline's communicators. Collective. A second call does nothing."""
        if not self._freed:
            self._freed = True
            self._watch.close()
            self._tied.free()
