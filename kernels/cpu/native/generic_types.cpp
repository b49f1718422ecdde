// Dequantizers of the types without fast kernels.
#include "matmul.h"
#include "matmul_layout.h"

namespace li {

int32_t generic_block_size(int32_t) {
    return 0;
}

int32_t generic_block_bytes(int32_t) {
    return 0;
}

void generic_dequantize(int32_t, const uint8_t*, int32_t, float*) {}

} // namespace li
