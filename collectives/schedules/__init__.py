"""What every rank does, as data: peer arithmetic, steps and rounds, and the table of algorithms by name."""
