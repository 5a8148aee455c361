/* wire_kernels_ref.c - the loops of the wire formats in plain C */
#include "backend/cpu/wire_kernels_loops.h"

const tw__wire_kernels tw__wire_kernels_ref = {
    .positions = loop_positions,
    .pack = loop_pack,
    .unpack = loop_unpack,
    .narrow_f16 = loop_narrow_f16,
    .narrow_bf16 = loop_narrow_bf16,
    .quantize = loop_quantize,
    .dequantize = loop_dequantize,
};
