"""Simulation of schedules on networks of many hosts, in a LogGP model."""
