/* fuzz_data.c - bytes become the files of a data set
 *
 * The first bytes give the kind of files (IDX, CIFAR-10, text), the options, and whether files are
 * packed by gzip here, as libFuzzer cannot guess its checksums. The files follow, each with its
 * length. Four bytes of the input make one record of CIFAR-10: its label and three colours.
 *
 * Files must be refused, or give batches of finite pixels, and labels and tokens within their range.
 */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "data/dataset.h"
#include "fuzz.h"

enum { IDX, CIFAR, TEXTS, TEXT, KINDS };
enum { MOST_FILES = 6, RECORD = 3073, PLANE = 1024 };

static const char *const names[KINDS][MOST_FILES] = {
    {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
     "t10k-labels-idx1-ubyte"},
    {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
     "data_batch_5.bin", "test_batch.bin"},
    {"train.txt", "test.txt"},
    {"text"},
};
static const char *const directories[KINDS] = {"idx", "cifar", "texts", "text"};

static void file_path(char *path, int kind, int file) {
    char name[FUZZ_PATH / 2];
    snprintf(name, sizeof name, "%s/%s", directories[kind], names[kind][file]);
    fuzz_path(path, name);
}

static void make_directories(void) {
    static int made;
    char path[FUZZ_PATH];
    for (int kind = 0; kind < KINDS && !made; kind++)
        REQUIRE(mkdir(fuzz_path(path, directories[kind]), 0777) == 0);
    made = 1;
}

/* ---- files */

static size_t make_records(uint8_t *to, const input *from) {
    size_t size = 0;
    const size_t records = from->left / 4 < 8 ? from->left / 4 : 8;
    for (size_t i = 0; i < records; i++, size += RECORD) {
        to[size] = from->data[4 * i];
        for (size_t c = 0; c < 3; c++)
            memset(to + size + 1 + c * PLANE, from->data[4 * i + 1 + c], PLANE);
    }
    const size_t rest = from->left - 4 * records < 4 ? from->left - 4 * records : 4;
    memcpy(to + size, from->data + 4 * records, rest);
    return size + rest;
}

static size_t pack(uint8_t *to, size_t room, uint8_t *from, size_t size) {
    z_stream z = {.next_in = from, .avail_in = (uInt)size, .next_out = to, .avail_out = (uInt)room};
    REQUIRE(deflateInit2(&z, 1, Z_DEFLATED, 9 + 16, 1, Z_DEFAULT_STRATEGY) == Z_OK);
    REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
    const size_t packed = z.total_out;
    deflateEnd(&z);
    return packed;
}

/* Bit i of `packed`: file i is packed; of `absent`: it is not there. */
static void write_files(input *in, int kind, uint32_t packed, uint32_t absent) {
    static uint8_t bytes[FUZZ_ROOM], gzip[2 * FUZZ_ROOM];
    char path[FUZZ_PATH];
    for (int i = 0; i < MOST_FILES && names[kind][i] != NULL; i++) {
        const input part = take_part(in);
        size_t size = part.left;
        if (kind == CIFAR)
            size = make_records(bytes, &part);
        else
            memcpy(bytes, part.data, size);
        file_path(path, kind, i);
        if (absent >> i & 1)
            fuzz_write(path, NULL, 0);
        else if (packed >> i & 1)
            fuzz_write(path, gzip, pack(gzip, sizeof gzip, bytes, size));
        else
            fuzz_write(path, bytes, size);
    }
}

/* ---- batches */

enum { COUNT = 2, LENGTH = 8, MOST_PIXELS = 1 << 16 };

static void check_batch(const dataset *set, const batch_spec *spec, int64_t step) {
    static float images[COUNT * MOST_PIXELS];
    static int32_t tokens[COUNT * LENGTH], labels[COUNT * LENGTH], segments[COUNT * LENGTH];
    int32_t lengths[COUNT], follows[COUNT], filled = 0;
    const batch_buffers buffers = {images, tokens, labels, segments, lengths, follows};
    const dataset_info *info = dataset_get_info(set);
    const int64_t pixels = (int64_t)info->height * info->width * info->channels;
    const int32_t most = spec->form == BATCH_IMAGES ? info->classes : info->vocabulary;
    if (pixels > MOST_PIXELS)
        return;
    REQUIRE(dataset_batch(set, spec, 1, step, &buffers, &filled) == TW_OK);
    REQUIRE(filled >= 0 && filled <= COUNT);
    for (int64_t i = 0; spec->form == BATCH_IMAGES && i < filled * pixels; i++)
        REQUIRE(isfinite(images[i]));
    for (int32_t i = 0; i < filled * (spec->form == BATCH_IMAGES ? 1 : LENGTH); i++) {
        REQUIRE(labels[i] < most && labels[i] >= (spec->form == BATCH_MASKED ? TOKEN_IGNORE : 0));
        REQUIRE(spec->form == BATCH_IMAGES || (tokens[i] >= 0 && tokens[i] < most));
    }
}

static void check_set(const dataset *set, uint64_t seed) {
    const dataset_info *info = dataset_get_info(set);
    batch_spec spec = {.count = COUNT, .length = LENGTH, .seed = seed, .augment = seed % 2 == 1};
    spec.form = info->kind == DATASET_IMAGES ? BATCH_IMAGES
                : info->masked               ? BATCH_MASKED
                                             : BATCH_WORDS;
    for (spec.split = DATASET_TRAIN; spec.split < DATASET_SPLITS; spec.split++) {
        int64_t steps = 0;
        if (dataset_steps(set, &spec, &steps) != TW_OK)
            continue;
        for (int64_t step = 0; step < steps && step < 3; step++)
            check_batch(set, &spec, step);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input in = fuzz_begin(data, size);
    char path[FUZZ_PATH];
    dataset *set = NULL;
    const int kind = take_row(&in, KINDS);
    const uint32_t packed = take(&in, 1), absent = take(&in, 1), more = take(&in, 1);
    const dataset_options options = {.train_limit = more & 1 ? 2 : 0,
                                     .test_limit = more & 2 ? 3 : 0,
                                     .classes = more & 4 ? (int32_t)take(&in, 1) : 0,
                                     .vocabulary = more & 8 ? (int32_t)take(&in, 1) : 0,
                                     .masked = more & 16};
    make_directories();
    write_files(&in, kind, packed, absent);
    if (kind == TEXT)
        file_path(path, kind, 0);
    else
        fuzz_path(path, directories[kind]);
    const int status = dataset_open(&set, path, &options);
    REQUIRE((status == TW_OK) == (set != NULL));
    REQUIRE(status == TW_OK || status == TW_ERR_FILE || status == TW_ERR_DAMAGED ||
            status == TW_ERR_PARAM || status == TW_ERR_NAME);
    if (status == TW_OK)
        check_set(set, more / 32);
    dataset_close(set);
    return 0;
}

/* ---- seeds */

static void put_idx(output *out, int images, int count, int side) {
    uint8_t bytes[256] = {0, 0, 8, images ? 3 : 1, 0, 0, 0, (uint8_t)count};
    size_t size = 8;
    for (int i = 0; i < 2 && images; i++, size += 4)
        bytes[size + 3] = (uint8_t)side;
    for (int i = 0; i < (images ? count * side * side : count); i++)
        bytes[size++] = (uint8_t)(images ? 7 * i : i % 10);
    put_part(out, bytes, size);
}

/* Each kind, plain and packed, with and without options. */
size_t fuzz_seed(int number, uint8_t *data, size_t room) {
    static const char train[] = "the cat sat. it ran!\nwho ran? the dog ran. a cat.\n\nthe end\n";
    static const char test[] = "the dog sat. it ran\na new word?\nthe cat. it sat. the end.\n";
    static const uint8_t record[] = {3, 10, 20, 30, 9, 0, 128, 255};
    output out = {data, 0, room};
    const int kind = number % KINDS, how = number / KINDS;
    if (how >= 6)
        return 0;
    put(&out, (uint32_t)kind, 1);
    put(&out, how % 2 ? 255 : 0, 1);
    put(&out, 0, 1);
    put(&out, how / 2 == 0 ? 0 : how / 2 == 1 ? 16 : 32 + 3, 1);
    for (int i = 0; i < MOST_FILES && names[kind][i] != NULL; i++) {
        if (kind == IDX)
            put_idx(&out, i % 2 == 0, 4, 5);
        else if (kind == CIFAR)
            put_part(&out, record, sizeof record);
        else if (kind == TEXTS)
            put_part(&out, i == 0 ? train : test, strlen(i == 0 ? train : test));
        else {
            char both[400];
            snprintf(both, sizeof both, "%s%s%s%s", train, train, train, test);
            put_part(&out, both, strlen(both));
        }
    }
    return out.size;
}
