"""The binding alone, without torch: ranks are threads, gradients are arrays."""
import os
import tempfile
import threading
from array import array

import thinwire

RANKS, N = 4, 400


def floats(values):
    return array("f", values)


def gradient(rank, step):
    return floats(((7 * i + 31 * rank + 13 * step) % 41) - 20 for i in range(N))


def together(play, nranks=RANKS):
    """Runs play(rank, transport) on threads; raises the first error of a rank."""
    results, errors = [None] * nranks, []

    def one(rank, transport):
        try:
            results[rank] = play(rank, transport)
        except Exception as error:
            errors.append(error)
    ranks = [threading.Thread(target=one, args=pair)
             for pair in enumerate(thinwire.threads(nranks))]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    if errors:
        raise errors[0]
    return results


def open_group(transport, **options):
    group = thinwire.Group(transport, **dict({"scheme": "oktopk", "density": 0.1}, **options))
    group.add(N)
    group.open()
    return group


def test_nothing_is_lost():
    def play(rank, transport):
        group, given, applied = open_group(transport), [0] * N, [0] * N
        for step in range(8):
            grad = gradient(rank, step)
            given = [old + new for old, new in zip(given, grad)]
            group.allreduce(0, grad)
            applied = [old + RANKS * new for old, new in zip(applied, grad)]
        residual = floats([0] * N)
        group.residual(0, residual)
        info = group.info(0)
        assert info.step == 8 and info.applied == 40 and info.exchange == b"oktopk"
        assert transport.traffic()["payload_sent"] > 0
        group.close()
        try:
            group.info(0)
            assert False, "a closed group answers"
        except thinwire.StateError as error:
            assert "closed" in str(error)
        return given, applied, residual
    results = together(play)
    for i in range(N):
        kept = sum(residual[i] for _, _, residual in results)
        assert all(applied[i] == results[0][1][i] for _, applied, _ in results)
        assert results[0][1][i] + kept == sum(given[i] for given, _, _ in results), i


def test_background_and_state():
    with tempfile.TemporaryDirectory() as folder:
        def play(rank, transport):
            group = open_group(transport, select="exact")
            path = os.path.join(folder, str(rank))
            for step in range(3):
                grad, out = gradient(rank, step), floats([0] * N)
                group.start(0, grad, out)
                group.wait()
            group.save(path)
            after, again = gradient(rank, 9), gradient(rank, 9)
            group.allreduce(0, after)
            group.load([path])
            group.allreduce(0, again)
            assert after == again and any(after)
            group.close()
        together(play)


def refused(kind, words, call=thinwire.Group, *arguments, **options):
    try:
        call(*(arguments or [thinwire.alone()]), **options)
    except kind as error:
        assert words in str(error), error
        return
    assert False, (kind, words)


def test_parameters_reach_the_library():
    """The last field of both structures, and one of each type before it, arrive."""
    refused(thinwire.ParamError, "bucket: -1", density=0.1, bucket=-1)
    refused(thinwire.ParamError, "timeout: -2", density=0.1, timeout=-2)
    refused(ValueError, "checksum: 'off'; accepted is True, False", checksum="off")
    assert thinwire.Group(thinwire.alone(), density=0.1).params.checksum == 0
    assert thinwire.Group(thinwire.alone(), density=0.1, checksum=False).params.checksum == 1
    refused(thinwire.NameError, "nonsense", scheme="nonsense")
    refused(thinwire.NameError, "nonsense", wire="nonsense")
    for field, value in (("dgc_sample", -1.0), ("gaussian_rounds", -1), ("reuse_nudge", -1.0),
                         ("reuse_period", -1), ("warmup_density", -1.0), ("warmup_steps", -1),
                         ("clip_norm", -1.0), ("momentum", 2.0), ("device", 9), ("threads", -1)):
        refused(thinwire.Error, field, density=0.1, **{field: value})


def test_equal_bytes():
    """With count="per_rank" oktopk applies (P-1)/3 times as many values."""
    def play(rank, transport):
        ks = []
        for scheme in ("topka", "oktopk"):
            group = open_group(transport, scheme=scheme, count="per_rank")
            group.allreduce(0, gradient(rank, 0))
            ks.append(group.info(0).k)
            group.close()
        return ks
    assert together(play, 7) == [[40, 80]] * 7
    refused(ValueError, "count: 'each'; accepted is 'of_scheme', 'per_rank'", count="each")


def test_options_of_a_tensor():
    """A tensor's options replace the group's; they have the same names."""
    group = thinwire.Group(thinwire.alone(), scheme="topka", density=0.1)
    tensors = [group.add(N), group.add(N, k=7), group.add(N, density=0.5, select="exact"),
               group.add(N, k=0, feedback=False, type=0)]
    for kind, words, options in (
            (TypeError, "unknown option 'densty'; accepted are select, k, density", {"densty": 1}),
            (TypeError, "unknown option 'method'", {"method": "exact"}),
            (TypeError, "unknown option 'wire'", {"wire": "raw"}),
            (TypeError, "select: 5; accepted is a name", {"select": 5}),
            (TypeError, "k: 0.5; accepted is a whole number", {"k": 0.5}),
            (ValueError, "feedback: 'off'; accepted is True, False", {"feedback": "off"}),
            (thinwire.ParamError, "threads: 4294967297", {"threads": 2**32 + 1}),
            (thinwire.NameError, "nonsense", {"select": "nonsense"}),
            (thinwire.KError, "not both", {"k": 5, "density": 0.1})):
        refused(kind, words, group.add, N, **options)
    group.open()
    sent = []
    for tensor in tensors:
        grad, residual = gradient(0, 0), floats([1] * N)
        group.allreduce(tensor, grad)
        group.residual(tensor, residual)
        sent.append((sum(value != 0 for value in grad), any(residual)))
    assert sent == [(40, True), (7, True), (200, True), (40, False)], sent
    refused(TypeError, "'fluff'; accepted are scheme, exchange", fluff=1)
    refused(thinwire.KError, "not both", density=0.1, k=5)


def test_sizes():
    """Buffers of another size than the tensor are refused: the library would overrun them."""
    group = open_group(thinwire.alone())
    for wrong in (floats([0] * (N - 1)), array("d", [0] * N)):
        refused(thinwire.SizeError, "the tensor has 1600", group.allreduce, 0, wrong)
        refused(thinwire.SizeError, "the tensor has 1600", group.start, 0, gradient(0, 0), wrong)
        refused(thinwire.SizeError, "the tensor has 1600", group.residual, 0, wrong)
    refused(thinwire.IndexError, "tensor: 1; accepted is 0 .. 0", group.allreduce, 1, floats([0]))
    halves = thinwire.Group(thinwire.alone(), density=0.1, type=1)
    halves.add(N)
    halves.open()
    grad = array("H", [0x3c00] * N)     # ones
    refused(thinwire.SizeError, "800 bytes were given", halves.allreduce, 0, grad)
    out = floats([0] * N)
    halves.allreduce(0, grad, out)
    assert sum(out) == 40


def test_names():
    assert thinwire.version().count(".") == 2
    assert thinwire.schemes()["oktopk"]["exchange"] == "oktopk"
    assert issubclass(thinwire.TimeoutError, thinwire.Error)
    assert {"AdamW", "SGD", "compress", "TimeoutError", *thinwire.__all__} <= set(dir(thinwire))
    memory = thinwire.Group(thinwire.alone(), density=0.1)
    memory.add(1000)
    assert memory.memory()["residual"] >= 4000


if __name__ == "__main__":
    for test in (test_nothing_is_lost, test_background_and_state,
                 test_parameters_reach_the_library, test_equal_bytes, test_options_of_a_tensor,
                 test_sizes, test_names):
        test()
        print("ok", test.__name__, flush=True)
