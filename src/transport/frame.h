/* frame.h - the header of every message that leaves the process
 *
 *     | frame, 24 bytes | body, frame.bytes |        in the byte order of the machine
 *
 * Transports over sockets and MPI put it before each message. The frame has a CRC-32C of its own, so
 * that its length can be relied on, and carries that of the body. The number finds messages that were
 * lost, repeated or exchanged. The version tells messages that were sent before ranks were lost or came
 * from those after. It is not encryption: who can write to the connection can forge both.
 *
 * A sender fills bytes, number and tag, then body and checked, then seals. A receiver checks the frame
 * before it uses any of it, and the body once it is complete:
 *
 *     frame = tw__frame_open(data, bytes, tag, on)    tw__frame_check
 *     frame.number = ...;                             crc = tw__crc32c(crc, part, ...) as it arrives
 *     tw__frame_seal(&frame)                          tw__frame_check_body */
#ifndef TW_TRANSPORT_FRAME_H
#define TW_TRANSPORT_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define TW__FRAME_TAGS 4
/* A text of a check. */
#define TW__FRAME_TEXT 160

typedef struct tw__frame {
    uint64_t bytes;   /* of the body */
    uint32_t number;  /* among the messages of this sender and receiver, from 0; wraps around */
    uint16_t version; /* of the membership in which it was sent; wraps around */
    uint8_t tag;
    uint8_t checked; /* 1: `body` is the CRC of the body; 0: it was not computed */
    uint32_t body;
    uint32_t crc; /* of all before it */
} tw__frame;

/* Describes a message; `checked`: with the CRC of its body. */
tw__frame tw__frame_open(const void *data, size_t bytes, int tag, int checked);
/* Sets crc: when all other fields are set. */
void tw__frame_seal(tw__frame *frame);

/* Whether the frame is whole and has this number. If not, text[TW__FRAME_TEXT] says what is wrong. */
int tw__frame_check(const tw__frame *frame, uint32_t number, char *text);
/* The same of a body whose CRC is `crc`. Always true if the sender computed none. */
int tw__frame_check_body(const tw__frame *frame, uint32_t crc, char *text);

#endif
