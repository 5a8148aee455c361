/* sha256.h - SHA-256 (FIPS 180-4) and HMAC (FIPS 198-1), for handshakes between ranks */
#ifndef TW_BASE_SHA256_H
#define TW_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define TW__DIGEST 32 /* bytes */

typedef struct tw__sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    unsigned char block[64];
} tw__sha256;

void tw__sha256_begin(tw__sha256 *hash);
void tw__sha256_add(tw__sha256 *hash, const void *data, size_t bytes);
void tw__sha256_end(tw__sha256 *hash, unsigned char digest[TW__DIGEST]);

/* A message in parts, under a key. key may be NULL if key_bytes is 0. */
typedef struct tw__hmac {
    tw__sha256 inner, outer;
} tw__hmac;

void tw__hmac_begin(tw__hmac *mac, const void *key, size_t key_bytes);
void tw__hmac_add(tw__hmac *mac, const void *data, size_t bytes);
void tw__hmac_end(tw__hmac *mac, unsigned char digest[TW__DIGEST]);

/* Whether they are equal, in a time that does not depend on where they differ. */
int tw__digest_equal(const unsigned char a[TW__DIGEST], const unsigned char b[TW__DIGEST]);

#endif
