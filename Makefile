# The front door. `make help` lists what there is; everything real happens in CMake and scripts/.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
SECONDS ?= 60
PYTHON ?= python3
# Small enough for a tool that is 30 times slower; it hides AVX-512, so these run on AVX2.
VALGRIND_PARTS = info state bad_calls warmup random reuse conservation momentum undo

.PHONY: all demo help deps test test-release test-mpich test-asan test-tsan test-valgrind test-gpu \
        test-gpu-memory fuzz bench bench-torch bench-gpu bench-allreduce bench-auto bench-vgg16 netlab \
        verify lint format install clean

all: ## build the library and build/thinwire
	@scripts/install-deps build
	cmake --preset release -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	cmake --build build -j$(JOBS)

demo: all ## train under six schemes and compare: a minute, then look at report.html
	build/thinwire demo

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' Makefile

deps: ## install what building, testing and linting need
	@scripts/install-deps build test lint

test: ## install what is missing, build, run all tests, sanitizers and valgrind included
	@scripts/install-deps build test
	$(MAKE) test-release test-mpich test-asan test-tsan test-valgrind
	@grep -hs '^SKIP' $(addsuffix /Testing/Temporary/LastTest.log,build build-mpich build-asan build-tsan) \
	    | sort | uniq -c | sed 's/^ *\([0-9]*\) SKIP/not run, \1 times/'
	@echo "make test: all that could be run has passed"

test-release:
	cmake --preset release -DTHINWIRE_WERROR=ON
	cmake --build build -j$(JOBS)
	ctest --test-dir build --output-on-failure -j$(JOBS)

# The same MPI tests with the other MPI.
test-mpich:
	@if ! command -v mpicc.mpich >/dev/null; then echo "SKIP: no MPICH here"; exit 0; fi; \
	set -ex; cmake --preset mpich -DTHINWIRE_WERROR=ON; \
	cmake --build build-mpich -j$(JOBS) --target test_transport_mpi thinwire_cli; \
	ctest --test-dir build-mpich --output-on-failure -j$(JOBS) -R "mpi|cli|train"

test-asan:
	cmake --preset asan -DTHINWIRE_WERROR=ON
	cmake --build build-asan -j$(JOBS)
	ctest --test-dir build-asan --output-on-failure -j$(JOBS)

test-tsan:
	cmake --preset tsan -DTHINWIRE_WERROR=ON
	cmake --build build-tsan -j$(JOBS) --target tests_threads
	ctest --test-dir build-tsan --output-on-failure -j$(JOBS) -L threads

test-valgrind: test-release
	printf '%s\n' $(VALGRIND_PARTS) | xargs -P$(JOBS) -I PART \
	    valgrind --quiet --leak-check=full --error-exitcode=1 build/tests/test_PART

test-gpu: all ## on a GPU: its tests, then memcheck, synccheck and racecheck on some of them
	ctest --test-dir build --output-on-failure -R "cuda|nccl"
	$(MAKE) test-gpu-memory

# Some of the tests, as racecheck takes long; test_cuda_quick is made for it. Tests let calls of CUDA fail
# on purpose, so only what kernels do is reported.
test-gpu-memory:
	for tool in "memcheck --report-api-errors no" synccheck racecheck; do \
	    for part in "cuda quick" "cuda_wire quick" cuda_quick; do \
	        PATH="$$PATH:/usr/local/cuda/bin" compute-sanitizer --tool $$tool --error-exitcode 1 \
	            build/tests/test_$$part || exit 1; \
	    done; \
	done

fuzz: ## look for crashes with libFuzzer for SECONDS (60) seconds
	@scripts/install-deps build fuzz
	cmake --preset fuzz
	cmake --build build-fuzz -j$(JOBS) --target fuzz_selector fuzz_exchange fuzz_wire
	build-fuzz/tests/fuzz_selector -max_total_time=$(SECONDS) -max_len=4096
	build-fuzz/tests/fuzz_exchange -max_total_time=$(SECONDS) -max_len=4096
	build-fuzz/tests/fuzz_wire -max_total_time=$(SECONDS) -max_len=4096

bench: all ## selection against the bare memory pass
	build/thinwire bench select
	build/thinwire bench select --cold --method exact
	build/thinwire bench select --method exact --n 133547324

bench-allreduce: all ## every scheme against dense, bytes against their bounds
	build/thinwire bench allreduce --n 14728266 --density 0.001,0.01 --ranks 4
	build/thinwire bench overlap --ranks 4

bench-auto: all ## auto against the best fixed scheme, 300 simulated cells: an hour
	build/thinwire simulate --grid --steps 2

verify: all ## every scheme, pattern and rank count up to 32, threads and both MPIs: half an hour
	@if command -v mpicc.mpich >/dev/null; then \
	    cmake --preset mpich && cmake --build build-mpich -j$(JOBS) --target thinwire_cli; fi
	scripts/verify-exchange

# NETLAB=... are options of scripts/netlab.
netlab: all ## every scheme and the trainer over 8 shaped hosts on this machine; needs root
	@scripts/install-deps netlab
	cmake --build build -j$(JOBS) --target bench_links bench_mpi_allreduce
	@if command -v mpicc.mpich >/dev/null; then cmake --preset mpich && cmake --build build-mpich -j$(JOBS) \
	    --target thinwire_cli bench_links bench_mpi_allreduce; fi
	scripts/netlab $(NETLAB)

bench-vgg16: all ## forward and backward of vgg16 against PyTorch on the same cores
	@scripts/install-deps bench
	cmake --build build --target bench_vgg16
	bench/torch_vgg16.py

bench-torch: all ## exact selection against torch.topk on the CPU
	@scripts/install-deps bench
	bench/torch_topk.py

# PYTHON is one whose torch is built for CUDA: Debian's is not.
bench-gpu: all ## selection on a GPU, against the bare pass and against torch on the same GPU
	build/thinwire bench select --device cuda --method exact --n 14728266
	build/thinwire bench select --device cuda --method exact --n 133547324
	build/thinwire bench select --device cuda --method exact --n 14728266 --cold
	build/thinwire bench select --device cuda --method exact --n 133547324 --cold
	$(PYTHON) bench/torch_gpu.py

lint: ## formatting and static analysis
	@scripts/install-deps build lint
	scripts/lint

format: ## reformat all sources
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

install: all ## install to PREFIX (/usr/local)
	cmake --install build --prefix $(PREFIX)
	@case $(PREFIX) in \
	/usr|/usr/local) ldconfig 2>/dev/null || echo "install: run ldconfig as root: programs find the library then" ;; \
	*) lib=$$(dirname $$(find $(PREFIX)/lib* -name libthinwire.so)); \
	    echo "install: for programs, export PKG_CONFIG_PATH=$$lib/pkgconfig LD_LIBRARY_PATH=$$lib" ;; \
	esac

clean: ## remove all builds
	rm -rf build build-*
