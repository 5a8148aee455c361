/* train_log.c - see train_log.h */
#include "train_log.h"

#include "names.h"

void train_log_run(jsonl *log, const run_facts *facts) {
    const train_settings *s = facts->settings;
    jsonl_text(log, "kind", "run");
    jsonl_integer(log, "version", 1);
    jsonl_text(log, "name", s->name != NULL ? s->name : scheme_at(s->scheme));
    jsonl_text(log, "model", facts->spec->model.name);
    jsonl_integer(log, "parameters", facts->parameters);
    jsonl_text(log, "data", s->data != NULL ? s->data : DATASET_EMBEDDED);
    jsonl_text(log, "scheme", scheme_at(s->scheme));
    jsonl_text(log, "select", facts->select);
    jsonl_text(log, "exchange", facts->exchange);
    jsonl_real(log, "density", s->density);
    jsonl_integer(log, "nranks", facts->nranks);
    jsonl_text(log, "transport", facts->transport);
    jsonl_integer(log, "batch", facts->spec->batch);
    jsonl_integer(log, "steps", facts->spec->steps);
    jsonl_integer(log, "epochs", s->epochs);
    jsonl_integer(log, "seed", s->seed);
    jsonl_text(log, "optimizer", facts->spec->optimizer.name);
    jsonl_real(log, "lr", facts->spec->schedule.rate);
    jsonl_real(log, "momentum", s->momentum);
    jsonl_real(log, "weight_decay", s->weight_decay);
    jsonl_write(log);
}

void train_log_step(jsonl *log, const trainer_step *step) {
    const trainer_times *t = &step->times;
    jsonl_text(log, "kind", "step");
    jsonl_integer(log, "step", step->step);
    jsonl_integer(log, "epoch", step->epoch);
    jsonl_real(log, "loss", step->loss);
    jsonl_real(log, "accuracy", step->accuracy);
    jsonl_real(log, "lr", step->rate);
    jsonl_integer(log, "k", step->k);
    jsonl_integer(log, "selected", step->selected);
    jsonl_integer(log, "applied", step->applied);
    jsonl_integer(log, "payload_sent", step->traffic.payload_sent);
    jsonl_integer(log, "payload_recv", step->traffic.payload_received);
    jsonl_integer(log, "control", step->traffic.control_sent);
    jsonl_real(log, "time_s", t->data + t->forward + t->backward + t->exposed + t->optimiser);
    jsonl_real(log, "data_s", t->data);
    jsonl_real(log, "forward_s", t->forward);
    jsonl_real(log, "backward_s", t->backward);
    jsonl_real(log, "select_s", t->select);
    jsonl_real(log, "exchange_s", t->exchange);
    jsonl_real(log, "apply_s", t->apply);
    jsonl_real(log, "optimiser_s", t->optimiser);
    jsonl_real(log, "wait_s", t->wait);
    jsonl_real(log, "exposed_s", t->exposed);
    jsonl_real(log, "elapsed_s", step->elapsed);
    jsonl_integer(log, "skipped", step->skipped);
    jsonl_write(log);
}

void train_log_evaluation(jsonl *log, const trainer_evaluation *evaluation) {
    jsonl_text(log, "kind", "evaluation");
    jsonl_integer(log, "step", evaluation->step);
    jsonl_integer(log, "epoch", evaluation->epoch);
    jsonl_real(log, "loss", evaluation->loss);
    jsonl_real(log, "accuracy", evaluation->accuracy);
    jsonl_real(log, "elapsed_s", evaluation->elapsed);
    jsonl_write(log);
}

void train_log_snapshot(jsonl *log, const trainer_snapshot *snapshot) {
    double rest = 1.0 - (double)snapshot->k / (double)snapshot->n;
    jsonl_text(log, "kind", "snapshot");
    jsonl_integer(log, "step", snapshot->step);
    jsonl_real(log, "low", snapshot->low);
    jsonl_real(log, "high", snapshot->high);
    for (int i = 0; i < TRAINER_BINS; i++)
        jsonl_append_integer(log, "counts", snapshot->counts[i]);
    jsonl_integer(log, "n", snapshot->n);
    jsonl_integer(log, "k", snapshot->k);
    jsonl_real(log, "contraction", snapshot->contraction);
    jsonl_real(log, "bound_topk", rest * rest);
    jsonl_real(log, "bound_random", rest);
    jsonl_write(log);
}

void train_log_end(jsonl *log, const trainer_end *end, bool same) {
    jsonl_text(log, "kind", "end");
    jsonl_integer(log, "steps", end->steps);
    jsonl_real(log, "seconds", end->seconds);
    jsonl_real(log, "loss", end->loss);
    jsonl_real(log, "accuracy", end->accuracy);
    jsonl_integer(log, "skipped", end->skipped);
    jsonl_flag(log, "replicas_equal", same);
    jsonl_write(log);
}
