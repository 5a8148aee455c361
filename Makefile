# Shortcuts: `make help` lists them. The build is CMake's; longer recipes are scripts.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
SECONDS ?= 60
PYTHON ?= python3
WERROR ?=
BUILD = cmake --build $(1) -j$(JOBS)
# One more at a time than there are cores: some tests wait.
CTEST = ctest --output-on-failure -j$$(($(JOBS) + 1)) --test-dir
# Small enough for valgrind, which is 30 times slower. It hides AVX-512, so these run on AVX2.
VALGRIND_PARTS = info state bad_calls warmup random reuse conservation momentum undo

.NOTPARALLEL:
.PHONY: all demo help deps install uninstall dist deb wheel abi check test test-release test-mpich test-asan test-tsan \
        test-valgrind test-arm test-options test-cluster test-clients test-gpu test-gpu-memory lint format fuzz fuzz-coverage \
        attack churn kill-matrix mutate verify mpich bench bench-allreduce bench-auto bench-torch \
        bench-vgg16 bench-gpu netlab clean

all: ## build the library and build/thinwire; installs nothing
	@scripts/install-deps --check build
	cmake --preset release -DCMAKE_INSTALL_PREFIX="$(PREFIX)" $(if $(WERROR),-DTHINWIRE_WERROR=$(WERROR))
	$(call BUILD,build)

# Compiles what the demo runs, in build/. `make` compiles the rest: GPU kernels, MPI, tests.
demo: ## install what is missing, train under six schemes, compare: 2 minutes, then see report.html
	@scripts/install-deps demo
	cmake --preset $$(grep -qs THINWIRE_DEMO:BOOL=OFF build/CMakeCache.txt && echo release || echo demo)
	$(call BUILD,build) --target thinwire_cli
	build/thinwire demo

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' Makefile

deps: ## install what building, testing and linting need: apt, and sudo unless you are root
	@scripts/install-deps build test lint

install: all ## install to PREFIX (/usr/local); DESTDIR is put before it
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)" >/dev/null
	@scripts/after-install "$(DESTDIR)" "$(PREFIX)"

uninstall: ## remove what the last `make install` installed, with the same DESTDIR
	@scripts/uninstall build/install_manifest.txt "$(DESTDIR)"

dist: ## dist/thinwire-VERSION.tar.gz of the last commit, the same bytes from every machine; recipes for Spack and conda
	scripts/make-dist

deb: ## Debian packages of the last commit in dist/, checked by lintian
	@scripts/install-deps build deb
	scripts/make-deb

wheel: ## the Python package for every Linux of 2018 and later in dist/, without CUDA; pip installs tools
	scripts/make-wheel

# Twice as many at a time as there are cores: some of these tests wait most of the time.
check: ## release tests in 90 seconds; without the longest, sanitizers, MPICH and valgrind
	@scripts/install-deps --check check
	$(MAKE) all
	$(CTEST) build -LE slow -j$$((2 * $(JOBS)))

test: ## install what is missing, run all tests, sanitizers, both MPIs and valgrind: 15 minutes
	@scripts/install-deps build test
	$(MAKE) test-release test-mpich test-asan test-tsan test-valgrind
	@grep -hs '^SKIP' $(addsuffix /Testing/Temporary/LastTest.log,build build-mpich build-asan build-tsan) \
	    | sort | uniq -c | sed 's/^ *\([0-9]*\) SKIP/not run, \1 times/'
	@echo "make test: every test that this machine can run has passed"

test-release: all ## part of `make test`: all tests of the release build
	$(CTEST) build

test-mpich: mpich ## part of `make test`: the MPI tests over MPICH
	@if [ -x build-mpich/thinwire ]; then set -x; $(CTEST) build-mpich -R "mpi|cli|train"; fi

# oktopk measures traffic, for which the release build will do. exchange takes 148 s here: exchange_small, hostile
# messages and the fuzzers look at the same code.
test-asan: ## part of `make test`: tests with AddressSanitizer and UndefinedBehaviorSanitizer
	cmake --preset asan
	$(call BUILD,build-asan)
	$(CTEST) build-asan -E '^(oktopk|exchange)$$'

test-tsan: ## part of `make test`: tests with threads under ThreadSanitizer
	cmake --preset tsan
	$(call BUILD,build-tsan) --target tests_threads
	$(CTEST) build-tsan -L threads

test-valgrind: all ## part of `make test`: some tests under valgrind
	printf '%s\n' $(VALGRIND_PARTS) | xargs -P$(JOBS) -I PART \
	    valgrind --quiet --leak-check=full --error-exitcode=1 build/tests/test_PART

test-arm: all ## tests under qemu, cross-compiled for 64-bit ARM; hashes as on this machine
	@scripts/install-deps arm
	JOBS=$(JOBS) scripts/test-arm

# CLIENTS: a virtual environment. Its packages are installed if one is missing; they take 6 GB.
CLIENTS ?= build-clients
test-clients: all ## Accelerate, Lightning, transformers, torch from PyPI (6 GB): train, kill, resume; 5 minutes
	[ -x $(CLIENTS)/bin/python ] || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet torch numpy accelerate lightning transformers tensorboard
	set -e; export THINWIRE_LIBRARY=$(CURDIR)/build/libthinwire.so PYTHONPATH=$(CURDIR)/python; \
	for test in clients/test_clients clients/test_logging python/test_states python/test_hsdp \
	    python/test_interface python/test_local; do \
	    $(CLIENTS)/bin/python tests/$$test.py; \
	done
	$(CLIENTS)/bin/python tests/clients/test_install.py

test-options: ## every option of the build after every other, compilers, add_subdirectory: 10 minutes
	JOBS=$(JOBS) sh tests/cli/test_options.sh .

# CLIENTS has a torchrun; without one PyTorch is left out. The validator of the manifest comes from PyPI.
test-cluster: all ## every command of docs/cluster.md on emulated hosts, Slurm included; needs root, 2 minutes
	@scripts/install-deps cluster
	[ -x build-cluster/bin/kubernetes-validate ] || { $(PYTHON) -m venv build-cluster && \
	    build-cluster/bin/pip install --quiet kubernetes-validate; }
	TOOLS=$(abspath build-cluster)/bin:$(abspath $(CLIENTS))/bin scripts/test-cluster

test-gpu: all ## on a GPU: its tests, then test-gpu-memory
	ctest --test-dir build --output-on-failure -R "cuda|nccl"
	$(MAKE) test-gpu-memory

# racecheck is slow: test_cuda_quick is made for it. Tests let CUDA calls fail on purpose, so
# memcheck reports kernels only.
test-gpu-memory: ## on a GPU: memcheck, synccheck and racecheck on some of its tests
	for tool in "memcheck --report-api-errors no" synccheck racecheck; do \
	    for part in "cuda quick" "cuda_wire quick" cuda_quick; do \
	        PATH="$$PATH:/usr/local/cuda/bin" compute-sanitizer --tool $$tool --error-exitcode 1 \
	            build/tests/test_$$part || exit 1; \
	    done; \
	done

lint: ## check formatting, run static analysis
	@scripts/install-deps build lint
	scripts/lint

format: ## reformat all sources
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

# PARTS: names of fuzzers, as exchange. None: all.
abi: ## compare the shared libraries with those that were recorded; scripts/abi record writes them anew
	@scripts/install-deps build abi
	scripts/abi

fuzz: ## look for crashes with libFuzzer, SECONDS (60) for each of the fuzzers in tests/fuzz
	@scripts/install-deps build fuzz
	scripts/fuzz $(SECONDS) $(PARTS)

fuzz-coverage: ## lines of exchanges, transports and loaders that the inputs of `make fuzz` reach
	@scripts/install-deps build fuzz
	scripts/fuzz --coverage $(PARTS)

# BITS: how many to flip. The quick part is in `make test`.
attack: all mpich ## faults of network and files against real processes: one table, 5 minutes
	scripts/attack $(if $(BITS),--bits $(BITS))

# SEED: of the random events.
churn: all ## processes that are killed, leave and join at random for SECONDS (60): nothing lost, nothing wrong
	build/tests/test_churn $(SECONDS) $(SEED)

# EVERY: 1 takes every point.
EVERY ?= 10
kill-matrix: all ## a process dies in every stage, message and call, in six ways, for each exchange and transport
	build/tests/test_kill_matrix $(EVERY)

# MUTANTS: texts; mutants whose line contains one of them are tried. None: all.
mutate: ## change the sources in one place at a time (tests/mutants.txt): a test must fail each time
	@scripts/install-deps build test
	scripts/mutate $(MUTANTS)

verify: all mpich ## every scheme, pattern and rank count up to 32, threads and both MPIs: half an hour
	scripts/verify-exchange

mpich: ## build-mpich: thinwire over MPICH where another MPI is the default
	@if ! command -v mpicc.mpich >/dev/null; then echo "SKIP: no MPICH; 'make deps' installs it"; exit 0; fi; \
	set -ex; cmake --preset mpich; \
	$(call BUILD,build-mpich) --target thinwire_cli test_transport_mpi bench_links bench_mpi_allreduce

# NETLAB: options of scripts/netlab.
netlab: ## every scheme and the trainer over 8 shaped hosts on this machine; needs root
	@scripts/install-deps netlab
	$(MAKE) all mpich
	$(call BUILD,build) --target bench_links bench_mpi_allreduce
	scripts/netlab $(NETLAB)

bench: all ## selection against the bare memory pass
	build/thinwire bench select
	build/thinwire bench select --cold --method exact
	build/thinwire bench select --method exact --n 133547324

bench-allreduce: all ## every scheme against dense, bytes against their bounds
	build/thinwire bench allreduce --n 14728266 --density 0.001,0.01 --ranks 4
	build/thinwire bench overlap --ranks 4

bench-auto: all ## auto against the best fixed scheme, 300 simulated cells: an hour
	build/thinwire simulate --grid --steps 2

bench-torch: all ## exact selection against torch.topk on the CPU
	@scripts/install-deps bench
	bench/torch_topk.py

bench-vgg16: all ## forward and backward of vgg16 against PyTorch on the same cores
	@scripts/install-deps bench
	$(call BUILD,build) --target bench_vgg16
	bench/torch_vgg16.py

# Debian's torch has no CUDA: PYTHON names a Python whose torch does.
bench-gpu: all ## selection on a GPU, against the bare pass and against torch on the same GPU
	for n in 14728266 133547324; do for cold in "" --cold; do \
	    build/thinwire bench select --device cuda --method exact --n $$n $$cold || exit 1; \
	done; done
	$(PYTHON) bench/torch_gpu.py
	$(PYTHON) bench/torch_adamw.py

clean: ## remove all builds
	rm -rf build build-*
