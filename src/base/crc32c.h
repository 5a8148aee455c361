/* crc32c.h - the checksum of messages between processes: CRC-32C (Castagnoli), as in iSCSI and ext4
 *
 * It finds every change of up to 3 bits in messages of up to 256 MiB, and every change within 32
 * neighbouring bits. Of all other changes it misses one in 2^32. */
#ifndef TW_BASE_CRC32C_H
#define TW_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of data[bytes] after data whose CRC is `crc`; 0: after nothing. */
uint32_t tw__crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same with the table, on every machine: what tests compare with. */
uint32_t tw__crc32c_table(uint32_t crc, const void *data, size_t bytes);

/* What tw__crc32c uses: "sse4.2", "armv8" or "table". */
const char *tw__crc32c_name(void);

#endif
