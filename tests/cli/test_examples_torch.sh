#!/bin/sh
# test_examples_torch.sh - PyTorch: sh test_examples_torch.sh PATH-TO-THINWIRE SOURCES PYTHON SO
#
# Two gloo ranks on the CPU. The test makes small data sets: images whose colour is their class, in
# both formats; a text that repeats; letters as tones. Every example trains dense and sparse: losses
# fall, replicas are equal, models have the papers' sizes, and `thinwire report` reads every log. One
# line names data that are missing or too few. Runs that are stopped or killed can be resumed, by
# scripts/experiments too. Status 77: no torch.

# shellcheck source=tests/cli/shell.sh
. "$(dirname "$0")/shell.sh"
examples=$2/examples
python=$3
export PYTHONPATH="$2/python:$examples" THINWIRE_LIBRARY="$4"
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 # see tests/python/ranks.py
if ! "$python" -c 'import numpy, torch.distributed' 2>"$dir/err"; then
    echo "SKIP: $python has no torch and numpy; 'scripts/install-deps bench' installs them"
    exit 77
fi

# ranks COUNT EXAMPLE ARGS...: runs COUNT ranks; output in $dir/out.RANK and $dir/err.RANK
ranks() {
    count=$1 example=$2
    shift 2
    port=$("$python" -c 'import socket; print(socket.create_server(("", 0)).getsockname()[1])')
    for rank in $(seq 0 $((count - 1))); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            timeout 120 "$python" ${wrapper:+"$wrapper"} "$examples/$example" --device cpu "$@" \
            >"$dir/out.$rank" 2>"$dir/err.$rank" &
    done
    wait
}

# train NAME EXAMPLE ARGS...: trains with two ranks and the log $dir/NAME.jsonl
train() {
    name=$1
    shift
    ranks 2 "$@" --run-log "$dir/$name.jsonl"
    cat "$dir/out.0" "$dir/out.1" >"$dir/out"
    tail -n 3 "$dir/err.0" "$dir/err.1" >"$dir/err"
    "$python" "$dir/check.py" "$dir/$name.jsonl" >>"$dir/err" 2>&1 || fail "$name: $*"
}

# stops TEXT EXAMPLE ARGS...: one rank prints TEXT in one line and does not train. check_stops runs all
# that were noted here in one process: torch takes seconds to import.
stops() {
    printf '%s\n' "$@" . >>"$dir/stops"
}

check_stops() {
    "$python" "$dir/stops.py" "$examples" <"$dir/stops" >"$dir/out" 2>"$dir/err" ||
        fail "an example does not stop with the line that it should print"
}

# losses NAME: the losses of all steps of a run
losses() {
    grep '"step"' "$dir/$1.jsonl" | grep -o '"loss": [0-9.e-]*'
}

cat >"$dir/check.py" <<'EOF'
"""Checks the log of a run: complete, replicas equal, loss lower at the end than at the start."""
import json
import sys

lines = [json.loads(line) for line in open(sys.argv[1])]
kinds = [line["kind"] for line in lines]
steps = [line for line in lines if line["kind"] == "step"]
assert kinds[0] == "run" and kinds[-1] == "end" and "evaluation" in kinds, kinds
assert lines[-1]["replicas_equal"] is True
run = lines[0]
assert run["whole_model"] is (run["model"] in ("bert", "gpt")) and run["momentum_correction"] is False
assert run["momentum"] == (0.9 if run["optimizer"] == "sgd" else 0)
assert run["wire"] == ("q2" if run["local_steps"] else "bf16" if run["optimizer"] == "thinwire" else "raw")
assert {"weight_decay", "warmup", "density_warmup", "warmup_density"} <= run.keys()
assert [line["step"] for line in steps] == list(range(lines[0]["steps"]))
first, last = (sum(line["loss"] for line in part) for part in (steps[:3], steps[-3:]))
assert last < first, (first, last)
for line in steps:
    parts = ("data_s", "forward_s", "backward_s", "exposed_s", "optimiser_s")
    assert abs(sum(line[part] for part in parts) - line["time_s"]) < 1e-5, line
if lines[0]["scheme"] != "dense":
    assert all(line["k"] < lines[0]["parameters"] / 4 for line in steps[-3:])
    sparse = [line for line in steps[run["dense_steps"]:] if line["k"] > 0 or not run["local_steps"]]
    assert all(line["payload_sent"] > 0 and line["select_s"] > 0 for line in sparse)
    assert all("select_s" not in line for line in steps[:run["dense_steps"]])
EOF

cat >"$dir/stops.py" <<'EOF'
"""Runs examples that must end with one line before they train. Reads lines: text, example, arguments, '.'."""
import contextlib
import io
import os
import runpy
import socket
import sys

import torch.distributed as dist

examples = sys.argv[1]
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
for call in sys.stdin.read().split("\n.\n")[:-1]:
    text, example, *arguments = call.split("\n")
    sys.argv = [f"{examples}/{example}", "--device", "cpu", *arguments]
    with socket.create_server(("", 0)) as free:
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    said = None
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            said = end.code
    assert isinstance(said, str) and text in said, (sys.argv, said)
    assert "\n" not in said and not printed.getvalue(), (sys.argv, said, printed.getvalue())
    if dist.is_initialized():
        dist.destroy_process_group()
EOF

cat >"$dir/make.py" <<'EOF'
"""Makes data sets in a folder; without Pillow no sheets, without libsndfile no an4.npz."""
import pathlib
import subprocess
import sys
import wave

import numpy

out, examples = pathlib.Path(sys.argv[1]), sys.argv[2]
chance = numpy.random.default_rng(1)
labels = numpy.arange(6 * 100, dtype=numpy.uint8) % 10
images = chance.integers(0, 60, (600, 32, 32, 3), numpy.uint8)
images[:, :, :, 0] += (labels * 18)[:, None, None]
names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
(out / "bin").mkdir()
(out / "sheets").mkdir()
labels.tofile(out / "sheets" / "labels.bin")
for i, name in enumerate(names):
    part = images[100 * i:100 * i + 100]
    planes = part.transpose(0, 3, 1, 2).reshape(100, -1)
    records = numpy.concatenate([labels[100 * i:100 * i + 100, None], planes], 1)
    records.tofile(out / f"bin/{name}.bin")
    try:
        from PIL import Image
        sheet = part.reshape(10, 10, 32, 32, 3).swapaxes(1, 2).reshape(320, 320, 3)
        Image.fromarray(sheet).save(out / f"sheets/{name}.jpg", quality=95)
    except ImportError:
        pass

words = " ".join(f"w{i % 50}" for i in range(20000))
(out / "text").mkdir()
for part in ("train", "test"):
    (out / "text" / f"{part}.txt").write_text(words)

(out / "an4/etc").mkdir(parents=True)
for part, count in (("train", 32), ("test", 4)):
    (out / "an4/wav" / part).mkdir(parents=True)
    lines = []
    for i in range(count):
        text = ["GO", "YES", "NO"][i % 3]
        tones = [numpy.sin(numpy.arange(4800) * 0.02 * (ord(c) - 60)) for c in text]
        with wave.open(str(out / f"an4/wav/{part}/{part}{i}.wav"), "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
            file.writeframes((numpy.concatenate(tones) * 9000).astype("<i2").tobytes())
        lines.append(f"<s> {text} </s> ({part}{i})\n")
    (out / f"an4/etc/an4_{part}.transcription").write_text("".join(lines))
    ids = "".join(f"{part}/{part}{i}\n" for i in range(count))
    (out / f"an4/etc/an4_{part}.fileids").write_text(ids)
done = subprocess.run([sys.executable, f"{examples}/prepare_an4.py", str(out / "an4"),
                       str(out / "an4.npz")], capture_output=True, text=True)
if done.returncode != 0:
    assert "apt install libsndfile1" in done.stderr, done.stderr
    print("SKIP: torch_an4.py:", done.stderr, end="")
EOF
"$python" "$dir/make.py" "$dir" "$examples" || exit 1

"$python" - <<'EOF' || fail "the models have other sizes than the papers'"
import torch_an4, torch_bert, torch_cifar10, torch_gpt
sizes = {torch_cifar10.vgg16: 14728266, torch_cifar10.resnet20: 269722,
         torch_an4.DeepSpeech: 27569568,
         lambda: torch_bert.Bert(*torch_bert.SIZES["base"]): 133547324,
         lambda: torch_gpt.Gpt(65, 256, *torch_gpt.SIZES["small"]): 10775040}
for make, size in sizes.items():
    assert sum(p.numel() for p in make().parameters()) == size, (size, make)
EOF

"$python" - <<'EOF' || fail "masks do not hide what they should"
import numpy, torch, torch_an4
x = torch.ones(3, 200, torch_an4.FREQUENCIES)
torch_an4.hide(x, [200, 150, 5], 2, numpy.random.default_rng(1))
rows, columns = (x == 0).all(dim=2).sum(1), (x == 0).all(dim=1).sum(1)
assert 0 < rows[0] <= 40 and 0 < rows[1] <= 30 and rows[2] == 0, rows
assert (columns > 0).all() and (columns <= 2 * (torch_an4.FREQUENCIES // 6)).all(), columns
EOF

"$python" - <<'EOF' || fail "--anneal does not divide the rate after each epoch"
from argparse import Namespace
from torch_common import rate_at
args = Namespace(lr=1.0, warmup=0, schedule="constant", anneal=1.25)
assert [rate_at(args, step, 100, 10) for step in (0, 9, 10, 25)] == [1, 1, 0.8, 0.64]
EOF

"$python" - <<'EOF' || fail "prepare_an4.py does not say that libsndfile1 is missing"
import ctypes, prepare_an4
def missing(name):
    raise OSError(f"{name}: cannot open shared object file")
ctypes.CDLL = missing
try:
    prepare_an4.load_libsndfile()
except SystemExit as end:
    assert "libsndfile.so.1" in end.code and "apt install libsndfile1" in end.code
EOF

stops "--data $dir/none: should be a folder with data_batch_1.bin" torch_cifar10.py --data "$dir/none"
stops "--data $dir/none: should be a folder with train.txt" torch_bert.py --data "$dir/none"
stops "--data $dir/none: should be the file" torch_an4.py --data "$dir/none"
stops "--data $dir/none: should be a text file" torch_gpt.py --data "$dir/none"
stops "--batch 501: one step of 1 ranks" torch_cifar10.py --data "$dir/bin" --batch 501
stops "--batch 626: one step of 1 ranks" torch_bert.py --data "$dir/text" --batch 626 --length 35
stops "--test-limit: 0 test samples for 1 ranks" torch_bert.py --data "$dir/text" --test-limit 9
stops "--length: a sample has 1 character at least" torch_gpt.py --data "$dir/text/train.txt" --length 0
stops "--length: a sample has 1 character at least" ../bench/torch_peers.py \
    --data "$dir/text/train.txt" --peer ddp --length 0
stops "--graph: not with --accumulate" torch_gpt.py --data "$dir/text/train.txt" --graph --accumulate 2
stops "--graph: needs a GPU" torch_gpt.py --data "$dir/text/train.txt" --graph --scheme dense
stops "--graph: needs a GPU" ../bench/torch_peers.py --data "$dir/text/train.txt" --peer ddp --graph
stops "--resume, --until: need --checkpoint DIR" torch_gpt.py --data "$dir/text/train.txt" --until 1
stops "--accumulate: accepted is 1 or more" torch_gpt.py --data "$dir/text/train.txt" --accumulate 0
stops "--optimizer thinwire: not with --scheme dense" torch_gpt.py --data "$dir/text/train.txt" \
    --optimizer thinwire --scheme dense
stops "--per-rank: not with --scheme dense" torch_gpt.py --data "$dir/text/train.txt" --scheme dense --per-rank
stops "--trace: not with --scheme dense" torch_gpt.py --data "$dir/text/train.txt" --scheme dense --trace x
stops "--trace: needs 3 steps" torch_gpt.py --data "$dir/text/train.txt" --size tiny --length 32 --steps 2 \
    --batch 4 --test-limit 100 --trace x
stops "multiple of --local-steps" torch_local_steps.py --data "$dir/text/train.txt" --evaluate 7
stops "--merge: not with --scheme dense" torch_local_steps.py --data "$dir/text/train.txt" --scheme dense --merge mean
stops "--wire: not with --scheme dense" torch_local_steps.py --data "$dir/text/train.txt" --scheme dense --wire q4
check_stops

for scheme in dense oktopk; do
    set -- --scheme "$scheme" --density 0.1 --density-warmup 4 --warmup 2
    train "cifar10-$scheme" torch_cifar10.py --data "$dir/bin" --model resnet20 --batch 50 \
        --epochs 3 --lr 0.05 --snapshots 5 "$@"
    [ "$(grep -c '"snapshot"' "$dir/$name.jsonl")" -eq 3 ] || fail "$name: not 3 snapshots"
    if [ "$scheme" != dense ]; then # snapshots change nothing
        train unobserved torch_cifar10.py --data "$dir/bin" --model resnet20 --batch 50 \
            --epochs 3 --lr 0.05 "$@"
        [ "$(losses unobserved)" = "$(losses "cifar10-$scheme")" ] || fail "snapshots change losses"
    fi
    train "bert-$scheme" torch_bert.py --data "$dir/text" --steps 8 --batch 4 --length 35 \
        --lr 0.003 --test-limit 2000 --whole-model "$@"
    train "gpt-$scheme" torch_gpt.py --data "$dir/text/train.txt" --size tiny --length 32 --steps 8 \
        --batch 4 --lr 0.003 --test-limit 1000 "$@"
    if [ -e "$dir/an4.npz" ]; then
        train "an4-$scheme" torch_an4.py --data "$dir/an4.npz" --batch 8 --epochs 4 --width 32 \
            --layers 1 --lr 0.001 --masks 1 "$@"
    fi
done
train gpt-thinwire torch_gpt.py --data "$dir/text/train.txt" --size tiny --length 32 --steps 20 \
    --batch 4 --lr 0.003 --warmup 2 --test-limit 1000 --optimizer thinwire --scheme topka \
    --trace "$dir/timeline.json"
grep -q '^thinwire  *launch  *3 ' "$dir/out" || fail "$name: no table of the timeline"
grep -q '"cat": "thinwire"' "$dir/timeline.json" || fail "$name: no timeline"
grep -q '"density_warmup": 4' "$dir/$name.jsonl" || fail "$name: density does not fall for 4 steps"
# What PyTorch has: two dense steps, then PowerSGD's matrices of rank 1, counted as a ring sends them.
# torch 1 has PowerSGD on GPUs only.
peers="../bench/torch_peers.py --data $dir/text/train.txt --size tiny"
if "$python" -c 'import torch; torch.compile' 2>/dev/null; then
    # shellcheck disable=SC2086 # options are words
    ranks 2 $peers --length 16 --steps 4 --peer powersgd --rank 1 --run-log "$dir/powersgd.jsonl"
    "$python" - "$dir/powersgd.jsonl" <<'EOF' >"$dir/out" 2>&1 || fail "torch_peers.py: bytes of PowerSGD"
import json
import sys
run, *lines = map(json.loads, open(sys.argv[1]))
sent = [line["payload_sent"] for line in lines if line["kind"] == "step"]
assert sent[:2] == [4 * run["parameters"]] * 2 and 0 < sent[2] == sent[3] < sent[0] / 10, sent
EOF
fi

# One process with the batches of two ranks: the same but for the rounding of sums.
ranks 1 torch_cifar10.py --data "$dir/bin" --model resnet20 --batch 50 --epochs 3 --lr 0.05 \
    --scheme dense --warmup 2 --accumulate 2 --run-log "$dir/accumulated.jsonl"
"$python" - "$dir/accumulated.jsonl" "$dir/cifar10-dense.jsonl" <<'EOF' || fail "accumulated: other losses"
import json, sys
runs = [[json.loads(line) for line in open(path)] for path in sys.argv[1:]]
kept = [[(line["kind"], line["loss"]) for line in run if line["kind"] in ("step", "evaluation")][:6]
        for run in runs]
assert kept[0][5][0] == "evaluation" and runs[0][0]["nranks"] == 2, kept
assert all(abs(a - b) < 1e-3 for (_, a), (_, b) in zip(*kept)), kept
assert runs[0][1]["payload_sent"] == runs[1][1]["payload_sent"]
EOF

cat >"$dir/killed.py" <<'END'
"""Runs an example that ends in its second checkpoint, of which rank 0 has written nothing."""
import os, runpy, sys
import torch_checkpoint

def save(folder, step, common, own, complete=torch_checkpoint.save, steps=[]):
    if steps and os.environ["RANK"] == "0":
        os._exit(9)
    steps.append(step)
    complete(folder, step, common, own)

torch_checkpoint.save = save
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
END
# A run that is killed and resumed has the losses of one that was not: local steps, then compress.
set -- torch_local_steps.py --data "$dir/text/train.txt" --size tiny --length 32 --batch 4 --lr 0.003 \
    --test-limit 1000 --steps 10 --local-steps 2 --evaluate 4 --delayed
train local "$@"
wrapper=$dir/killed.py
ranks 2 "$@" --run-log "$dir/local-resumed.jsonl" --checkpoint "$dir/local-saved"
wrapper=
train local-resumed "$@" --checkpoint "$dir/local-saved" --resume
grep -q 'continues from step 4' "$dir/out.0" || fail "local steps: resumed from the beginning"
[ "$(losses local)" = "$(losses local-resumed)" ] || fail "local steps, resumed: other losses"
set -- torch_cifar10.py --data "$dir/bin" --model resnet20 --batch 25 --limit 250 --epochs 4 --lr 0.05 \
    --scheme oktopk --density 0.1 --dense-steps 3
train whole "$@"
wrapper=$dir/killed.py
ranks 2 "$@" --run-log "$dir/resumed.jsonl" --checkpoint "$dir/saved"
wrapper=
[ "$(cat "$dir/saved/latest")" -eq 5 ] || fail "killed: no checkpoint of step 5"
grep -q '"step": 9' "$dir/resumed.jsonl" || fail "killed: no step 9"
train resumed "$@" --checkpoint "$dir/saved" --resume
[ "$(losses whole)" = "$(losses resumed)" ] || fail "resumed: other losses"
grep -q 'continues from step 5' "$dir/out.0" || fail "resumed: from the beginning"

# scripts/experiments stops runs whose time is over, here in their first test, and continues them.
mkdir "$dir/data"
cp "$dir/text/train.txt" "$dir/data/tinyshakespeare.txt"
cat >"$dir/experiments" <<END
export MPS=0 RANKS=2 DENSE_RANKS=1 JOBS=2 PYTHON=$python SECONDS_PER_RUN=100
export MORE="--device cpu --size tiny --length 16 --warmup 0 --steps 6 --evaluate 2 --test-limit 300"
exec "$examples/../scripts/experiments" "$dir/data" "$dir/logs" gpt-dense gpt-topka-0.01 >"$dir/out" 2>"$dir/err"
END
SPARE=99 bash "$dir/experiments" || fail "experiments: failed"
grep -q 'experiments: stopped: gpt-' "$dir/err" || fail "experiments: not stopped"
bash "$dir/experiments" || fail "experiments: resuming failed"
for name in gpt-dense gpt-topka-0.01; do
    grep -q 'continues from step 2' "$dir/logs/$name.txt" || fail "experiments: $name: not resumed"
    "$python" "$dir/check.py" "$dir/logs/$name.jsonl" 2>"$dir/err" || fail "experiments: $name"
    [ ! -e "$dir/logs/saved/$name" ] || fail "experiments: $name: its checkpoint is still there"
done
bash "$dir/experiments"
[ "$(grep -c ': complete$' "$dir/out")" -eq 2 ] || fail "experiments: a complete run begins again"

if [ -e "$dir/sheets/test_batch.jpg" ]; then
    train sheets torch_cifar10.py --data "$dir/sheets" --model resnet20 --batch 50 --epochs 3 \
        --lr 0.05 --scheme dense
    [ "$(grep -c '"evaluation"' "$dir/sheets.jsonl")" -eq 3 ] || fail "sheets: not 3 evaluations"
fi
succeeds report "$dir"/*.jsonl --out "$dir/page.html"
"$python" "$examples/torch_table.py" "$dir"/*.jsonl >"$dir/tables" || fail "torch_table.py"
[ "$(grep -c '| True |$' "$dir/tables")" -eq "$(find "$dir" -maxdepth 1 -name '*.jsonl' | wc -l)" ] ||
    fail "torch_table.py: not a row for each run"
sed 's/"name": "oktopk"/"name": "oktopk-s2"/' "$dir/resumed.jsonl" >"$dir/logs/s2.jsonl"
"$python" "$examples/torch_table.py" "$dir/resumed.jsonl" "$dir/logs/s2.jsonl" >"$dir/tables"
grep -q '^| oktopk | 2 | [0-9.]* ([0-9.]* to ' "$dir/tables" || fail "torch_table.py: no means"
"$python" "$examples/torch_table.py" "$dir/page.html" 2>"$dir/err" && fail "torch_table.py: a page"
[ "$(wc -l <"$dir/err")" -eq 1 ] || fail "torch_table.py: expected one line on stderr"
finish
