"""Shared by the PyTorch examples: options, the process group, one training loop.

    torchrun --nproc_per_node 8 examples/torch_cifar10.py --data DIR --scheme oktopk --density 0.02

Two torchruns of Debian need more options before the script. Debian 12 (torch 1.13): -r 9:3 -t 9:3.
Debian 13 (torch 2.6 without libuv), FILE being a new file for each run:
    USE_LIBUV=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --local-addr 127.0.0.1 \\
        --rdzv-backend c10d --rdzv-conf store_type=file --rdzv-endpoint FILE ...

An example defines a task: an object with `name`, `data_name`, `model`, `steps_per_epoch`,
`test_samples` (of all ranks) and
    batch(step, rank)   -> the argument of loss(), on the device; depends on the arguments and the
                           seed alone, so that a run can be resumed
    loss(model, batch)  -> mean loss and accuracy of the batch, tensors without a dimension
    evaluate(model)     -> over this rank's share of the test data: sum of losses, their number;
                           correct predictions, their number
`--scheme dense` is plain DistributedDataParallel. Others add one call of thinwire.compress, or have
thinwire.AdamW as their optimiser.
"""
import argparse
import contextlib
import math
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch_checkpoint
from torch_runlog import VERSION, Clock, Observer, RunLog, dense_step, snapshot, sparse_step

FLUSH = 20  # steps between lines of the log: each flush waits for the GPU
WARM = 3    # passes before the first step
TRACED, BEFORE_TRACE = 3, 20    # steps in a timeline, and before it


def parser(description, **defaults):
    """The options that all examples have; defaults replace those below."""
    p = argparse.ArgumentParser(description=description.split("\n\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--data", required=True, help="data set; the file says which forms it takes")
    p.add_argument("--scheme", default="oktopk", help="dense: plain DDP; else one of thinwire's")
    p.add_argument("--density", type=float, default=0.01, help="k/n")
    p.add_argument("--per-rank", action="store_true",
                   help="equal upper bounds of bytes: those of topka at this density. oktopk sends "
                        "about 60 %% of topka's bytes (8 ranks), other schemes 50 to 81 %%")
    p.add_argument("--density-warmup", type=int, metavar="STEPS",
                   help="in which density falls to it (default 0; thinwire: a fifth of the run)")
    p.add_argument("--density-schedule", choices=("exponential", "linear", "cosine"),
                   default="exponential", help="how it falls")
    p.add_argument("--warmup-density", type=float, default=0.25, help="of the first of these")
    p.add_argument("--whole-model", action="store_true",
                   help="the k largest values of the model, not of each parameter")
    p.add_argument("--dense-steps", type=int, default=0, metavar="STEPS",
                   help="of plain DDP before the first sparse one")
    p.add_argument("--wire", help="how entries are written (default raw; thinwire: bf16)")
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--steps", type=int, help="instead of --epochs")
    p.add_argument("--batch", type=int, default=32, help="samples per rank and step")
    p.add_argument("--accumulate", type=int, default=1, metavar="RANKS",
                   help="whose batches a process takes, one after the other")
    p.add_argument("--limit", type=int, help="training samples (default all)")
    p.add_argument("--test-limit", type=int, help="test samples (default all)")
    p.add_argument("--optimizer", choices=("sgd", "adamw", "thinwire"), default="sgd",
                   help="sgd and adamw step after the exchange; thinwire is thinwire.AdamW, "
                        "before selection")
    p.add_argument("--betas", type=float, nargs=2,
                   help="of adamw (default 0.9 0.999) and thinwire (0.9 0.99)")
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--schedule", choices=("constant", "cosine"), default="cosine")
    p.add_argument("--anneal", type=float, default=1.0, metavar="FACTOR",
                   help="divides lr after each epoch")
    p.add_argument("--warmup", type=int, default=0, metavar="STEPS", help="in which lr rises")
    p.add_argument("--momentum", type=float, default=0.9, help="of sgd")
    p.add_argument("--momentum-correction", action="store_true",
                   help="momentum before selection, as in Deep Gradient Compression")
    p.add_argument("--weight-decay", type=float, default=5e-4)
    p.add_argument("--clip", type=float, default=0, help="2-norm of the mean gradient; 0: any")
    p.add_argument("--evaluate", type=int, metavar="STEPS", help="between tests (default an epoch)")
    p.add_argument("--snapshots", type=int, default=0, metavar="STEPS",
                   help="between histograms of acc = gradient + residual; 0: none")
    p.add_argument("--bucket-mb", type=float, default=25, help="of gradients that travel together")
    p.add_argument("--amp", action="store_true", help="forward and backward in bfloat16")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--checkpoint", metavar="DIR",
                   help="saved after each test; all ranks must see the folder")
    p.add_argument("--until", type=float, metavar="TIME", default=math.inf,
                   help="seconds since 1970 after which the run saves its only checkpoint, in the "
                        "next test, and stops")
    p.add_argument("--resume", action="store_true",
                   help="continue from the checkpoint, where there is one")
    p.add_argument("--run-log", metavar="FILE", help="JSON lines, for thinwire report")
    p.add_argument("--trace", metavar="FILE",
                   help=f"timeline of {TRACED} steps of rank 0, for Perfetto; prints a table of it")
    p.add_argument("--name", help="of the run, in the log (default the scheme)")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--backend", default="gloo",
                   help="of the process group; with a GPU per rank cpu:gloo,cuda:nccl")
    p.set_defaults(**defaults)
    return p


def check(args):
    if args.scheme == "dense" and args.momentum_correction:
        raise SystemExit("--momentum-correction: not with --scheme dense, which selects nothing")
    if args.scheme == "dense" and args.per_rank:
        raise SystemExit("--per-rank: not with --scheme dense, which sends all values")
    if args.scheme == "dense" and args.trace:
        raise SystemExit("--trace: not with --scheme dense; torch.profiler shows all of it")
    if args.momentum_correction and args.dense_steps:
        raise SystemExit("--dense-steps: not with --momentum-correction")
    if args.optimizer == "thinwire":
        if args.scheme == "dense":
            raise SystemExit("--optimizer thinwire: not with --scheme dense, which selects nothing")
        for name in ("momentum_correction", "dense_steps", "clip", "snapshots"):
            if getattr(args, name):
                raise SystemExit(f"--{name.replace('_', '-')}: not with --optimizer thinwire")
        args.wire = args.wire or "bf16"
    args.betas = args.betas or (0.9, 0.99 if args.optimizer == "thinwire" else 0.999)
    if not args.checkpoint and (args.resume or args.until < math.inf):
        raise SystemExit("--resume, --until: need --checkpoint DIR")
    if args.accumulate < 1:
        raise SystemExit("--accumulate: accepted is 1 or more")


def setup(args, same_shapes=True):
    """Joins the process group that torchrun prepared and returns this rank's device.
    same_shapes: all batches have one shape, so that cuDNN may look for its fastest kernels."""
    check(args)
    os.environ.setdefault("USE_LIBUV", "0")     # Debian 13's torch 2.6 is built without it
    dist.init_process_group(args.backend)
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = same_shapes
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    return device


def train(args, make_task, data, loop=None, same_shapes=True):
    """Runs an example with its options. data: what --data should name, for the error text; loop:
    a class in place of Loop."""
    device = setup(args, same_shapes)
    try:
        task = make_task(args, device)
    except OSError as error:
        raise SystemExit(f"--data {args.data}: should be {data}: {error}")
    if task.steps_per_epoch == 0:
        raise SystemExit(f"--batch {args.batch}: one step of {nranks_of(args)} ranks takes "
                         "more training samples than there are; lower it, use fewer ranks, or "
                         "raise --limit")
    if task.test_samples < dist.get_world_size():
        raise SystemExit(f"--test-limit: {task.test_samples} test samples for "
                         f"{dist.get_world_size()} ranks; each takes one at least")
    (loop or Loop)(args, task, device).run()


def compress(args, model):
    """The one line that a script needs. Returns thinwire's state."""
    import thinwire

    return thinwire.compress(model, scheme=args.scheme, density=args.density, seed=args.seed,
                             warmup_steps=args.density_warmup, warmup_density=args.warmup_density,
                             warmup=args.density_schedule,
                             momentum=args.momentum if args.momentum_correction else 0.0,
                             wire=args.wire, whole_model=args.whole_model, count=count_of(args))


def count_of(args):
    return "per_rank" if args.per_rank else "of_scheme"


def make_optimizer(args, model, steps):
    """Those of torch step with the mean gradient. thinwire's exchanges gradients itself."""
    parameters = list(model.parameters())
    if args.optimizer == "thinwire":
        import thinwire

        wire = {"wire": args.wire} if args.wire else {}
        return thinwire.AdamW(parameters, args.lr, args.betas, weight_decay=args.weight_decay,
                              model=model, scheme=args.scheme, density=args.density, steps=steps,
                              warmup_steps=args.density_warmup, whole_model=args.whole_model,
                              warmup=args.density_schedule,
                              warmup_density=args.warmup_density, seed=args.seed,
                              count=count_of(args), **wire)
    if args.optimizer == "adamw":
        fused = {"fused": True} if parameters[0].is_cuda and hasattr(torch, "compile") else {}
        return torch.optim.AdamW(parameters, args.lr, args.betas, weight_decay=args.weight_decay,
                                 **fused)
    if args.momentum_correction:  # which makes a gradient 1 / (1 - momentum) times as large
        return torch.optim.SGD(parameters, args.lr,
                               weight_decay=args.weight_decay / (1 - args.momentum))
    return torch.optim.SGD(parameters, args.lr, args.momentum, weight_decay=args.weight_decay)


def rate_at(args, step, steps, steps_per_epoch):
    rate = args.lr * min(1.0, (step + 1) / (args.warmup + 1))
    rate /= args.anneal ** (step // steps_per_epoch)
    if args.schedule == "constant":
        return rate
    done = max(0.0, (step - args.warmup) / max(1, steps - args.warmup))
    return rate * 0.5 * (1 + math.cos(math.pi * done))


def nranks_of(args):
    """Ranks whose batches make a step; --accumulate lets a process stand for several."""
    return dist.get_world_size() * args.accumulate


def seed_of(args, number, step=0):
    """For the random numbers of a step: number is the rank, or the same on all ranks."""
    return (args.seed * 1000 + number) * 1000003 + step


def shard(n):
    """This rank's share of n test samples."""
    return range(dist.get_rank(), n, dist.get_world_size())


class Loop:
    """One run of a task under a scheme."""

    def __init__(self, args, task, device):
        self.args, self.task, self.device = args, task, device
        task.model.to(device)
        self.slow_statistics()
        if device.type == "cuda":
            self.warm_up()
        self.model = self.wrap(task.model)
        self.parameters = sum(p.numel() for p in task.model.parameters())
        self.steps = args.steps or args.epochs * task.steps_per_epoch
        self.every = args.evaluate or task.steps_per_epoch
        self.optimizer = make_optimizer(args, self.model, self.steps)
        self.state = self.optimizer if args.optimizer == "thinwire" else None  # counts bytes
        self.alike = self.state is None  # all ranks' optimizers have the same state
        torch.manual_seed(args.seed * 1000 + dist.get_rank())  # of dropout
        self.clock, self.diverged, self.first = None, False, dist.get_rank() == 0
        self.timeline = None
        self.last_rank = (dist.get_rank() + 1) * args.accumulate - 1
        # The first parameter's gradient is the last: after it the backward pass only waits.
        next(task.model.parameters()).register_hook(self.end_backward)

    def wrap(self, model):
        if self.args.scheme == "dense" and dist.get_world_size() == 1:
            return model
        # Batch norm's statistics differ between ranks until an evaluation averages them. To
        # broadcast them in every forward pass would take more messages than the gradients.
        wrapped = DistributedDataParallel(
            model, device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.args.bucket_mb, gradient_as_bucket_view=True)
        wrapped.broadcast_buffers = False       # as an argument, torch 2.15 warns of it
        return wrapped

    def slow_statistics(self):
        """Lets batch norm's statistics move by one rank's momentum in all passes of a step."""
        for module in self.task.model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.momentum = 1 - (1 - module.momentum) ** (1 / self.args.accumulate)

    def warm_up(self):
        """Loads kernels and finds the fastest ones before the first step."""
        for step in range(WARM):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.amp):
                loss, _ = self.task.loss(self.task.model, self.task.batch(step, 0))
            loss.backward()
        self.task.model.zero_grad(set_to_none=True)

    def run(self):
        step, result = self.begin()
        first = max(step, self.args.dense_steps)
        traced = max(first, min(first + BEFORE_TRACE, self.steps - TRACED))
        if self.args.trace and traced + TRACED > self.steps:
            raise SystemExit(f"--trace: needs {TRACED} steps that thinwire makes")
        while step < self.steps and not self.diverged:
            if step == self.args.dense_steps and self.state is None:
                self.compress()
            with self.traced_at(step - traced):
                self.train_step(step)
            step += 1
            if step % FLUSH == 0:
                self.log.flush()
            if step % self.every == 0 or step == self.steps or self.diverged:
                result = self.evaluate(step)
                if step < self.steps and not self.diverged and self.save(step, result):
                    break
        else:
            self.log.write("end", steps=step, seconds=self.log.elapsed, skipped=0,
                           replicas_equal=self.replicas_equal(), **result)
        if self.state is not None:
            self.say(self.state.summary())
            self.state.close()
        dist.destroy_process_group()

    def compress(self):
        if self.args.scheme != "dense":
            self.state = compress(self.args, self.model)

    @contextlib.contextmanager
    def traced_at(self, number):
        """--trace, around step `number` of those that are traced."""
        if number == 0 and self.args.trace and self.first:
            import thinwire

            self.timeline = thinwire.trace(self.args.trace, self.state)
            self.timeline.__enter__()
        yield
        if self.timeline is not None and (number == TRACED - 1 or self.diverged):
            self.timeline.__exit__(None, None, None)
            print(f"{self.args.trace}:\n{self.timeline.summary()}", flush=True)
            self.timeline = None

    def train_step(self, step):
        args = self.args
        rate = rate_at(args, step, self.steps, self.task.steps_per_epoch)
        observed = args.snapshots > 0 and step % args.snapshots == 0
        observer = Observer(self.task.model, self.state) if observed and self.first else None
        self.clock, clock = None, Clock(self.device)
        clock.mark()
        for group in self.optimizer.param_groups:  # thinwire's needs it in the backward pass
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        others = self.accumulate(step)
        batch = self.task.batch(step, self.last_rank)
        clock.mark()
        loss, accuracy = self.forward(batch)
        clock.mark()
        self.clock = clock
        if not self.backward(loss):
            return
        clock.mark()
        if args.clip:
            most = args.clip / (1 - args.momentum) if args.momentum_correction else args.clip
            torch.nn.utils.clip_grad_norm_(self.task.model.parameters(), most)
        self.optimizer.step()
        clock.mark()
        values = {"step": step, "epoch": step // self.task.steps_per_epoch, "lr": rate,
                  **self.exchange()}
        self.log.step(values, loss.detach() + others[0], accuracy + others[1], clock)
        if observed:
            self.log.flush()
        if observer is not None:
            self.log.write("snapshot", step=step, **snapshot(observer.acc(), values["k"]))

    def accumulate(self, step):
        """Forward and backward passes of all ranks of this process but the last; their time counts
        as that of data. Returns their shares of loss and accuracy."""
        loss = accuracy = 0.0
        for rank in range(self.last_rank - self.args.accumulate + 1, self.last_rank):
            with getattr(self.model, "no_sync", contextlib.nullcontext)():
                part, right = self.forward(self.task.batch(step, rank))
                part.backward()
            loss, accuracy = loss + part.detach(), accuracy + right
        return loss, accuracy

    def forward(self, batch):
        """The batch's shares of this process's loss and accuracy."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.amp):
            loss, accuracy = self.task.loss(self.model, batch)
        return loss / self.args.accumulate, accuracy / self.args.accumulate

    def end_backward(self, _):
        if self.clock is not None:
            self.clock.mark()

    def backward(self, loss):
        """The hook of the first parameter marks its end; then DDP waits for the exchange. False: a
        gradient holds NaN or infinity, which thinwire reports on all ranks."""
        try:
            loss.backward()
        except RuntimeError as error:
            if type(error).__name__ != "NumberError":
                raise
            self.diverged = True
            self.say(f"stops: {error}")
        return not self.diverged

    def exchange(self):
        if self.state is None:
            return dense_step(self.parameters, nranks_of(self.args))
        return sparse_step(self.state)

    # ---- Checkpoints --------------------------------------------------------------------------

    def begin(self):
        """The first step, and the last result: of the checkpoint, if there is one to resume."""
        args = self.args
        found = torch_checkpoint.load(args.checkpoint) if args.resume else None
        if found is None:
            self.log = RunLog(args.run_log, self.device)
            self.log_run()
            return 0, None
        step, common, own = found
        self.log = RunLog(args.run_log, self.device, *common["log"])
        self.task.model.load_state_dict(common["model"])
        if common["optimizer"] is not None:
            self.optimizer.load_state_dict(common["optimizer"])
        if own["thinwire"] is not None:
            if self.state is None:
                self.compress()
            self.state.load_state_dict(own["thinwire"])
        torch.set_rng_state(own["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(own["device_random"])
        self.say(f"continues from step {step}")
        return step, common["result"]

    def save(self, step, result):
        """After an evaluation: it has made the buffers of all ranks equal. True: time to stop."""
        if not self.args.checkpoint:
            return False
        late = torch.tensor(float(time.time() > self.args.until))
        dist.broadcast(late, 0)
        if not late and self.args.until < math.inf:
            return False
        common = {"model": self.task.model.state_dict(), "log": self.log.position(),
                  "optimizer": self.optimizer.state_dict() if self.alike else None,
                  "result": result}
        own = {"thinwire": None if self.state is None else self.state.state_dict(),
               "random": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["device_random"] = torch.cuda.get_rng_state()
        torch_checkpoint.save(self.args.checkpoint, step, common, own)
        if late:
            self.say(f"stops at step {step}, to be resumed")
        return bool(late)

    # ---- Evaluation ---------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, step):
        self.log.flush()
        self.average_buffers()
        self.task.model.eval()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.amp):
            sums = self.task.evaluate(self.task.model).double().cpu()
        self.task.model.train()
        dist.all_reduce(sums)
        loss, losses, correct, count = sums.tolist()
        result = {"loss": loss / losses, "accuracy": correct / count}
        self.diverged |= not math.isfinite(result["loss"])
        epoch = step // self.task.steps_per_epoch
        self.log.write("evaluation", step=step, epoch=epoch, elapsed_s=self.log.elapsed, **result)
        self.say(f"epoch {epoch} step {step} test loss {result['loss']:.4f} "
                 f"accuracy {100 * result['accuracy']:.2f} % after {self.log.elapsed:.1f} s")
        return result

    def average_buffers(self):
        buffers = [b for b in self.task.model.buffers() if b.is_floating_point()]
        if buffers:
            flat = torch.cat([b.flatten() for b in buffers]).cpu()
            dist.all_reduce(flat)
            parts = flat.div_(dist.get_world_size()).split([b.numel() for b in buffers])
            for buffer, part in zip(buffers, parts):
                buffer.copy_(part.view_as(buffer))

    @torch.no_grad()
    def replicas_equal(self):
        """Whether the parameters of all ranks have the same bits, by two checksums."""
        sums = torch.zeros(2, dtype=torch.int64)
        for p in self.task.model.parameters():
            bits = p.detach().flatten().view(torch.int32).long()
            factors = torch.arange(1, bits.numel() + 1, device=bits.device)
            sums += torch.stack([bits.sum(), (bits * factors).sum()]).cpu()
        gathered = [torch.zeros_like(sums) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, sums)
        return all(torch.equal(other, sums) for other in gathered)

    # ---- Log ----------------------------------------------------------------------------------

    def say(self, text):
        if self.first:
            print(f"{self.args.name or self.args.scheme}: {text}", flush=True)

    def log_run(self):
        args = self.args
        has_momentum = args.optimizer == "sgd" or args.momentum_correction
        adaptive = {} if args.optimizer == "sgd" else {"betas": list(args.betas)}
        self.log.write("run", version=VERSION, name=args.name or args.scheme, model=self.task.name,
                       parameters=self.parameters, data=self.task.data_name, scheme=args.scheme,
                       density=1.0 if args.scheme == "dense" else args.density,
                       count=count_of(args),
                       nranks=nranks_of(args), accumulate=args.accumulate,
                       transport=args.backend, batch=args.batch,
                       steps=self.steps, epochs=self.steps // self.task.steps_per_epoch,
                       seed=args.seed, optimizer=args.optimizer, lr=args.lr, warmup=args.warmup,
                       momentum=args.momentum if has_momentum else 0.0,
                       momentum_correction=args.momentum_correction,
                       weight_decay=args.weight_decay, whole_model=args.whole_model,
                       density_warmup=self.density_warmup(),
                       density_schedule=args.density_schedule, dense_steps=args.dense_steps,
                       warmup_density=args.warmup_density, schedule=args.schedule,
                       anneal=args.anneal, clip=args.clip, **adaptive,
                       local_steps=getattr(args, "local_steps", 0),
                       wire=args.wire or ("auto" if args.scheme == "auto" else "raw"))

    def density_warmup(self):
        if self.args.density_warmup is not None:
            return self.args.density_warmup
        return self.steps // 5 if self.args.optimizer == "thinwire" else 0
