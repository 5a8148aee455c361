/* sha256.c - see sha256.h */
#include "base/sha256.h"

#include <string.h>

#define BLOCK 64
#define LENGTH_AT 56 /* of the last block: the number of bits */

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotated(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static void expand(uint32_t w[64], const unsigned char *block) {
    for (int i = 0; i < 16; i++) {
        const unsigned char *at = block + (size_t)i * 4;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) +
               (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
}

static void compress(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], s[8];
    expand(w, block);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t choice = (e & s[5]) ^ (~e & s[6]);
        uint32_t majority = (a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + choice +
                         round_constants[i] + w[i];
        uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void tw__sha256_begin(tw__sha256 *hash) {
    *hash = (tw__sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                   0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void tw__sha256_add(tw__sha256 *hash, const void *data, size_t bytes) {
    const unsigned char *from = data;
    while (bytes > 0) {
        size_t filled = hash->bytes % BLOCK;
        size_t part = bytes < BLOCK - filled ? bytes : BLOCK - filled;
        memcpy(hash->block + filled, from, part);
        hash->bytes += part;
        from += part;
        bytes -= part;
        if (hash->bytes % BLOCK == 0)
            compress(hash->state, hash->block);
    }
}

void tw__sha256_end(tw__sha256 *hash, unsigned char digest[TW__DIGEST]) {
    static const unsigned char padding[BLOCK] = {0x80};
    uint64_t bits = hash->bytes * 8;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(bits >> (56 - 8 * i));
    size_t filled = hash->bytes % BLOCK;
    tw__sha256_add(hash, padding, (filled < LENGTH_AT ? LENGTH_AT : LENGTH_AT + BLOCK) - filled);
    tw__sha256_add(hash, length, sizeof length);
    for (int i = 0; i < TW__DIGEST; i++)
        digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void tw__hmac_begin(tw__hmac *mac, const void *key, size_t key_bytes) {
    unsigned char block[BLOCK] = {0};
    if (key_bytes > BLOCK) {
        tw__sha256_begin(&mac->inner);
        tw__sha256_add(&mac->inner, key, key_bytes);
        tw__sha256_end(&mac->inner, block);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    for (int i = 0; i < BLOCK; i++)
        block[i] ^= 0x36;
    tw__sha256_begin(&mac->inner);
    tw__sha256_add(&mac->inner, block, BLOCK);
    for (int i = 0; i < BLOCK; i++)
        block[i] ^= 0x36 ^ 0x5c;
    tw__sha256_begin(&mac->outer);
    tw__sha256_add(&mac->outer, block, BLOCK);
}

void tw__hmac_add(tw__hmac *mac, const void *data, size_t bytes) {
    tw__sha256_add(&mac->inner, data, bytes);
}

void tw__hmac_end(tw__hmac *mac, unsigned char digest[TW__DIGEST]) {
    tw__sha256_end(&mac->inner, digest);
    tw__sha256_add(&mac->outer, digest, TW__DIGEST);
    tw__sha256_end(&mac->outer, digest);
}

int tw__digest_equal(const unsigned char a[TW__DIGEST], const unsigned char b[TW__DIGEST]) {
    unsigned char differ = 0;
    for (int i = 0; i < TW__DIGEST; i++)
        differ |= a[i] ^ b[i];
    return differ == 0;
}
