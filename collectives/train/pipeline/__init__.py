"""Pipelines of model stages: their schedules as data, the proof of a schedule, its timing and its drawing."""
