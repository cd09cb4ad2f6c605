"""Which parallelism for a model on these ranks: memory and time of a step, by models that the library has already.

`model` says what is trained and `machine` on what; `plan` lists meshes of data, pipeline and tensor ranks with their
settings; `memory` and `step` give the terms of each; `ranking` finds the best, `reasons` says why, and `asynchronous`
asks whether ranks should wait for each other at all. `cli` is ``python -m collectives advise``.
"""
