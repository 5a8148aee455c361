/* frame.c - see frame.h */
#include "transport/frame.h"

#include "base/crc32c.h"

#include <assert.h>
#include <stdio.h>

#define SEED 0x5457 /* "TW": the CRC begins with it, so that other formats do not match */
/* No message is longer: 2^31 entries, four times over. */
#define LONGEST (SIZE_MAX / 2 < (uint64_t)1 << 36 ? SIZE_MAX / 2 : (uint64_t)1 << 36)

_Static_assert(sizeof(tw__frame) == 24, "no padding: it would be sent");

tw__frame tw__frame_open(const void *data, size_t bytes, int tag, int checked) {
    assert(tag >= 0 && tag < TW__FRAME_TAGS);
    return (tw__frame){.bytes = bytes,
                       .tag = (uint8_t)tag,
                       .checked = checked != 0,
                       .body = checked ? tw__crc32c(0, data, bytes) : 0};
}

static uint32_t crc_of(const tw__frame *frame) {
    return tw__crc32c(SEED, frame, offsetof(tw__frame, crc));
}

void tw__frame_seal(tw__frame *frame) {
    frame->crc = crc_of(frame);
}

int tw__frame_check(const tw__frame *frame, uint32_t number, char *text) {
    if (frame->crc != crc_of(frame))
        snprintf(
            text, TW__FRAME_TEXT,
            "the header of message %u is damaged: its CRC32C does not match; was it changed on "
            "the way, or do ranks run different versions?",
            number);
    else if (frame->number != number)
        snprintf(
            text, TW__FRAME_TEXT,
            "message %u came, message %u was due: messages were lost, repeated or exchanged on "
            "the way",
            frame->number, number);
    else if (frame->tag >= TW__FRAME_TAGS || frame->bytes > LONGEST)
        snprintf(text, TW__FRAME_TEXT, "message %u has tag %u and %llu bytes, which cannot be",
                 number, frame->tag, (unsigned long long)frame->bytes);
    else
        return 1;
    return 0;
}

int tw__frame_check_body(const tw__frame *frame, uint32_t crc, char *text) {
    if (!frame->checked || frame->body == crc)
        return 1;
    snprintf(text, TW__FRAME_TEXT,
             "message %u of %llu bytes is damaged: its CRC32C is %08x, %08x was sent",
             frame->number, (unsigned long long)frame->bytes, crc, frame->body);
    return 0;
}
